"""What else in PyTorch changes gradients: `DistributedDataParallel`, and scalers for mixed precision.

``DistributedDataParallel`` leaves no mark on parameters, and its hooks are in C++. So `refuse_ddp` searches all objects
for its modules, only twice, since that is slow, and only in processes that use torch.distributed.

A ``GradScaler`` multiplies gradients without changing their versions, which `GradientReducer` compares, and of an
optimizer it reads only ``param_groups``, as code that logs a learning rate does. So its methods themselves are hooked.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from hvdlite.dynamo import outside_of_graphs
from hvdlite.torch.optimizer.names import Named

_HOOKED: Final = ("unscale_", "step")


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


def watch_scalers(is_reducing: Callable[[Any], bool]) -> None:
    """Makes scalers raise AssertionError for an optimizer that ``is_reducing``. Call it once."""

    def refusing(use: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(use)
        def call(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_enabled() and is_reducing(optimizer):
                raise AssertionError(
                    "a GradScaler was used while ranks are reducing the gradients of the last backward(); call "
                    "optimizer.synchronize() before scaler.unscale_() or scaler.step(), and the latter in "
                    "optimizer.skip_synchronize()"
                )
            return use(self, optimizer, *args, **kwargs)

        return outside_of_graphs(call)

    scaler: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler  # the first since torch 2.3
    for name in _HOOKED:
        setattr(scaler, name, refusing(getattr(scaler, name)))
