"""Keeps a `GradScaler` of PyTorch from changing gradients while ranks reduce them.

A scaler multiplies gradients without changing their versions, which `GradientReducer` compares, and of an optimizer it
reads only ``param_groups``, as code that logs a learning rate does. So its methods themselves are hooked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from hvdlite.dynamo import outside_of_graphs

_HOOKED: Final = ("unscale_", "step")


def watch_scalers(is_reducing: Callable[[Any], bool]) -> None:
    """Makes scalers raise AssertionError for an optimizer for which ``is_reducing`` is true. Call it once."""

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
