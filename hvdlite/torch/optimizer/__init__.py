"""An optimizer that steps on gradients reduced over all ranks."""

from __future__ import annotations

from hvdlite.torch.optimizer.distributed import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
