"""``horovod.spark``: `hvdlite.spark.run`, and the names around it that hvdlite does not have."""

from __future__ import annotations

from typing import Any, NoReturn

from hvdlite.spark import run

__all__ = ["get_available_devices", "run", "run_elastic"]

__path__: list[str] = []  # a package, because of horovod.spark.torch


def run_elastic(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises NotImplementedError, with what to do instead."""
    raise NotImplementedError(
        "hvdlite's jobs keep their ranks, so there is no run_elastic(); save checkpoints, and call horovod.spark.run() "
        "again when it raises hvdlite.WorkerFailed"
    )


def get_available_devices() -> list[str]:
    """``horovod.spark.task.get_available_devices``: the GPUs that Spark has given to the rank that calls it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    gpus = context.resources().get("gpu") if context else None
    return list(gpus.addresses) if gpus else []
