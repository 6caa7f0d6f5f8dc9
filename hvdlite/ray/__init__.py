"""Ranks in Ray's actors: `RayExecutor`, with Horovod's interface, and `HvdliteConfig` for trainers of Ray Train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hvdlite.ray.executor import RayExecutor
from hvdlite.ray.options import ExecutorSettings

if TYPE_CHECKING:
    from hvdlite.ray.train import HvdliteConfig

__all__ = ["ExecutorSettings", "HvdliteConfig", "RayExecutor"]


def __getattr__(name: str) -> Any:
    if name == "HvdliteConfig":  # with it comes ray.train, which needs more packages than Ray has
        from hvdlite.ray.train import HvdliteConfig

        return HvdliteConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
