"""Detects parameters whose gradients torch's ``DistributedDataParallel`` reduces as well.

That class leaves no mark on parameters, and its hooks are in C++. So this searches all objects for its modules, only
twice, since that is slow, and only in processes that use torch.distributed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch

from hvdlite.torch.optimizer.names import Named


def refuse_ddp(members: Iterable[Named]) -> None:
    """Raises ValueError if a parameter belongs to a ``DistributedDataParallel`` module."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    kind = torch.nn.parallel.DistributedDataParallel
    names = {id(parameter): name for name, parameter in members}
    for module in [each for each in gc.get_objects() if issubclass(type(each), kind)]:
        for parameter in module.parameters():
            if parameter.requires_grad and id(parameter) in names:
                raise ValueError(
                    f"parameter {names[id(parameter)]!r} is in a DistributedDataParallel module, which averages its "
                    "gradient already, and DistributedOptimizer would do so again. Use only one of the two: the "
                    "module as it is, without DistributedDataParallel, or the optimizer without DistributedOptimizer"
                )
