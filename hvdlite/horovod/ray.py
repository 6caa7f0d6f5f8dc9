"""``horovod.ray``: `hvdlite.ray.RayExecutor`, and a sentence in place of elastic jobs."""

from __future__ import annotations

from typing import Any

from hvdlite.ray import RayExecutor

__all__ = ["ElasticRayExecutor", "RayExecutor"]

__path__: list[str] = []  # a package, because of horovod.ray.runner


class ElasticRayExecutor:
    """Raises NotImplementedError, with what to do instead."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "hvdlite's jobs keep their ranks, so there is no ElasticRayExecutor; use horovod.ray.RayExecutor, save "
            "checkpoints, and call shutdown() and start() again when a rank is lost"
        )

    @staticmethod
    def create_settings(*args: Any, **kwargs: Any) -> None:
        """Raises the same."""
        ElasticRayExecutor()
