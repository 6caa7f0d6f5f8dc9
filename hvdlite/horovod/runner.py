"""``horovod.run``: Horovod's signature of `hvdlite.run`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvdlite.running import run as run_here

__all__ = ["run"]

__path__: list[str] = []  # a package, because of horovod.runner.launch

_ABSENT = {
    "elastic jobs": "min_num_proc max_num_proc min_np max_np slots reset_limit cooldown_range host_discovery_script",
    "MPI": "use_mpi mpi_args",
    "workers with another Python": "executable",
}


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls ``func(*args, **kwargs)`` on ``num_proc`` ranks and returns the results in rank order; see `hvdlite.run`.

    ``network_interface`` holds names separated by commas, ``network_interfaces`` the same or a list of them.
    ``disable_cache`` and ``use_gloo`` have no effect, because there is nothing to choose from. Raises ValueError for
    the arguments of elastic jobs and of MPI, and for ``executable``.
    """
    given = locals()
    for what, names in _ABSENT.items():
        for name in names.split():
            if given[name]:
                raise ValueError(f"{name} is not supported: this version of hvdlite has no {what}")
    if np is not None:
        warnings.warn("np is deprecated; use num_proc", DeprecationWarning, stacklevel=2)
        num_proc = np
    return run_here(
        func,
        args,
        kwargs,
        num_proc,
        hosts=hosts,
        hostfile=hostfile,
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        network_interfaces=network_interfaces or network_interface or (),
        start_timeout=start_timeout,
        output_filename=output_filename,
        verbose=bool(verbose),
    )
