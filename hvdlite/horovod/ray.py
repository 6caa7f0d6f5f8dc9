"""``horovod.ray``: `hvdlite.ray.RayExecutor`, and errors with advice for elastic jobs and Horovod's actor."""

from __future__ import annotations

from typing import Any

from hvdlite.ray import RayExecutor

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]

__path__: list[str] = []  # a package, because of horovod.ray.runner


class BaseHorovodWorker:
    """Raises NotImplementedError, with what to do instead."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "hvdlite has its own actors for ranks, so there is no BaseHorovodWorker; pass the class of your object to "
            "horovod.ray.RayExecutor.start(executable_cls=...), which makes one on each rank, and call it by execute()"
        )


class ElasticRayExecutor:
    """Raises NotImplementedError, with what to do instead."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "hvdlite's jobs keep their ranks, so there is no ElasticRayExecutor; use horovod.ray.RayExecutor, save "
            "checkpoints, and call shutdown() and start() again when a rank is lost"
        )

    @staticmethod
    def create_settings(*args: Any, **kwargs: Any) -> None:
        """Raises NotImplementedError too."""
        ElasticRayExecutor()
