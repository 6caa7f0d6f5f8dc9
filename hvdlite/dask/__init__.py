"""Calls a function on ranks that workers of a Dask cluster run: ``hvdlite.dask.run(client, train)``.

One task per worker is pinned there. It runs its rank in a child process, because Dask's tasks are threads, which nobody
can end, and ends it when the task is cancelled or its worker leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvdlite.hosted.arguments import call_arguments, check_num_proc

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
    names them instead, by address or name. With neither, each worker that is there now is a rank, so after a loss there
    may be fewer. Ranks are numbered by the workers' hosts and ports. In ``func``, ``hvd.init()`` joins the job. ``env``
    is added to the environment of the ranks. ``start_timeout`` is how long the workers may take to come, and then how
    long to begin, in seconds, by default HVDLITE_START_TIMEOUT.

    Functions, arguments and results are sent as Dask sends them, by value where they have no importable name.

    Raises `FunctionFailed` with the traceback of the rank that failed first, `WorkerFailed` if that rank or its worker
    was killed, another `LaunchError` if workers are missing or busy, and ValueError for invalid arguments. By then all
    ranks have ended, as they have after KeyboardInterrupt, or once the caller is gone.
    """
    try:
        from hvdlite.dask.caller import call
    except ModuleNotFoundError as error:
        if error.name not in ("distributed", "dask"):
            raise
        raise ModuleNotFoundError(
            f"hvdlite.dask needs the package {error.name}: pip install 'hvdlite[dask]'", name=error.name
        ) from None

    given = call_arguments(args, kwargs)
    check_num_proc(num_proc)
    return call(client, func, *given, num_proc, workers, dict(env or {}), start_timeout)
