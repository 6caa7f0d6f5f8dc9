"""Calls a function on ranks that workers of a Dask cluster run: ``hvdlite.dask.run(client, train)``.

Each worker gets one task, which runs its rank in a child process, because Dask's tasks are threads, which cannot be
killed. The task ends the child when it is cancelled or its worker leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvdlite.hosted.arguments import call_arguments

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["run"]


def run(
    client: Client,
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    workers: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    start_timeout: float | None = None,
) -> list[Any]:
    """Calls ``func(*args, **kwargs)`` on one rank per worker of ``client``'s cluster; returns the results by rank.

    With ``num_proc``, waits for so many workers, and takes the first by host and port if there are more. ``workers``
    names them instead, by address or name. With neither, each present worker is a rank. Ranks are numbered by the
    workers' hosts and ports. In ``func``, ``hvd.init()`` joins the job. ``env`` is added to the environment of the
    ranks. ``start_timeout``, in seconds, limits the wait for workers and then the start of the ranks; the default is
    HVDLITE_START_TIMEOUT.

    Functions, arguments and results are sent as Dask sends them, by value where they have no importable name.

    Raises `FunctionFailed` with the traceback of the rank that failed first, `WorkerFailed` if that rank or its worker
    was killed, another `LaunchError` if workers are missing or busy, and ValueError for invalid arguments. Then all
    ranks have ended, also after KeyboardInterrupt. Ranks also end when the caller does.
    """
    try:
        from hvdlite.dask.caller import call
    except ModuleNotFoundError as error:
        if error.name not in ("distributed", "dask"):
            raise
        raise ModuleNotFoundError(
            f"hvdlite.dask needs the package {error.name}: pip install 'hvdlite[dask]'", name=error.name
        ) from None

    given = call_arguments(args, kwargs, num_proc)
    return call(client, func, *given, num_proc, workers, dict(env or {}), start_timeout)
