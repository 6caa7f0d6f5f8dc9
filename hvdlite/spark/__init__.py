"""Calls a function on ranks that run in Spark's tasks: ``hvdlite.spark.run(train, args=(1e-3,), num_proc=4)``.

One barrier stage is one job: Spark starts all ranks at the same time, and ends all if it loses one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvdlite.hosted.arguments import call_arguments

__all__ = ["run"]

_ABSENT = {
    "MPI": "use_mpi extra_mpi_args",
    "workers with another Python than Spark's": "executable",
    "streams for the ranks' output, which is in the logs of Spark's executors": (
        "stdout stderr prefix_output_with_timestamp"
    ),
    "choice of interfaces, because ranks talk over the addresses by which Spark knows its executors": "nics",
}


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Sequence[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Calls ``fn(*args, **kwargs)`` on ``num_proc`` ranks, each a task of the active SparkContext; the results by rank.

    In ``fn``, ``hvd.init()`` joins the job. By default there are as many ranks as `spark.default.parallelism` says, or
    else as tasks can run at the same time. ``env`` is added to the environment of the ranks. ``start_timeout``, in
    seconds, limits the wait for slots and for all ranks; the default is HVDLITE_START_TIMEOUT. ``use_gloo`` and
    ``verbose`` have no effect. PySpark sends the function, so functions of a script or notebook and lambdas work.

    Raises `FunctionFailed` with the traceback of the rank that failed first, `WorkerFailed` if that rank's process,
    executor or node was lost, `BadHostSpec` if the cluster has too few slots, another `LaunchError` if Spark could not
    run the stage, ValueError for invalid arguments and settings of Spark, and ImportError without pyspark. Then all
    ranks have ended.
    """
    given = locals()
    for what, names in _ABSENT.items():
        for name in names.split():
            if given[name]:
                raise ValueError(f"{name} is not supported: hvdlite.spark has no {what}")
    try:
        from hvdlite.spark.stage import call
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("pyspark", "py4j"):
            raise ImportError("hvdlite.spark.run() needs PySpark; install it: pip install 'hvdlite[spark]'") from error
        raise
    return call(fn, *call_arguments(args, kwargs, num_proc), num_proc, start_timeout, dict(env or {}))
