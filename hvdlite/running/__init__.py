"""Calls a Python function on N ranks from inside a program: ``hvdlite.run(train, args=(1e-3,), np=4)``.

`run` starts `hvdrun` as a child process, so it works from any thread and has hvdrun's guarantees: it reports which rank
failed first, and leaves no process behind even if the caller is killed. Each rank is
``python -m hvdlite.running.worker``, which fetches the function from the caller over a connection that both sides
authenticate with a key of this call, and sends the result or the traceback. Address and key are in the environment,
never in a command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["run"]


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 1,
    *,
    hosts: str | None = None,
    hostfile: str | None = None,
    env: Mapping[str, str] | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    network_interfaces: str | Sequence[str] = (),
    start_timeout: float | None = None,
    output_filename: str | None = None,
    verbose: bool = False,
) -> list[Any]:
    """Calls ``func(*args, **kwargs)`` in ``np`` new processes that form a job, and returns the results in rank order.

    In ``func``, ``hvd.init()`` joins the job. ``env`` is added to the environment of the ranks; the other
    options are those of ``hvdrun``, with ``start_timeout`` in seconds and ``network_interfaces`` as a list or as names
    separated by commas. Output of the ranks is shown as by hvdrun.

    A function at the top level of a module or script is sent by its name; a script needs
    ``if __name__ == "__main__":`` around the call. Lambdas, nested functions and those of a notebook need the package
    cloudpickle. Function, arguments and each result may be 8 GiB pickled.

    Raises `FunctionFailed` with the traceback of the rank that failed first, `WorkerFailed` if that rank was killed or
    exited, another `LaunchError` if the job could not be started or a rank ended without a result, and ValueError for
    invalid arguments. Then all ranks have ended, also after KeyboardInterrupt.
    """
    from hvdlite.running.caller import Call  # with it come modules that `import hvdlite` alone does not need
    from hvdlite.running.functions import refuse_while_preparing

    refuse_while_preparing()
    if not callable(func):
        raise ValueError(f"func must be a function, got {type(func).__name__}")
    if isinstance(np, bool) or not isinstance(np, int) or np < 1:
        raise ValueError(f"np must be the number of processes to start, at least 1 (auto is for hvdrun); got {np!r}")
    if hosts is not None and hostfile is not None:
        raise ValueError("hosts and hostfile exclude each other; give one of them")
    interfaces = [network_interfaces] if isinstance(network_interfaces, str) else network_interfaces
    options = {
        "-H": hosts,
        "--hostfile": hostfile,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--network-interfaces": ",".join(interfaces) or None,
        "--start-timeout": None if start_timeout is None else f"{start_timeout:g}",
        "--output-filename": output_filename,
    }
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    if verbose:
        words.append("--verbose")
    return Call((func, tuple(args), dict(kwargs or {})), np, words, dict(env or {})).results()
