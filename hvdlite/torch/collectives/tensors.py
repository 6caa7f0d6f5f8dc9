"""The collectives over torch tensors, and tensors in memory that the ranks of a host share.

Collectives work on memory, outside autograd: a new result has no history, and a tensor written in place keeps its
history. Only the blocking forms that make a new tensor have gradients (`autograd`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvdlite.ops import Collectives, ProcessSet, global_process_set
from hvdlite.ops.memory import shared_bytes
from hvdlite.torch.collectives.adapter import TensorAdapter, dtype_of
from hvdlite.torch.collectives.autograd import differentiable
from hvdlite.torch.collectives.compiled import with_graphs
from hvdlite.torch.collectives.derivatives import RULES


class _Differentiable(Collectives[torch.Tensor]):
    """The collectives of `hvdlite.ops`, with gradients where there is a rule."""


for _form, _rule in RULES.items():
    setattr(_Differentiable, _form, differentiable(getattr(Collectives, _form), _rule))


@with_graphs
class TensorCollectives(_Differentiable):
    """The collectives for torch tensors, which `torch.compile` takes into its graphs."""

    def send(  # type: ignore[override]
        self,
        tensor: torch.Tensor,
        rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> torch.Tensor:
        """Sends ``tensor`` to ``rank``, which calls `recv`; returns a zero when it has been received.

        Only these two ranks call anything. Without a name, the first send to a rank meets its first receive from here.
        A sender adds the zero to its loss, so that its backward waits for the gradient from the receiver.
        """
        zero: Any = super().send(tensor, rank, name, process_set)
        is_number = not isinstance(tensor, torch.Tensor)
        dtype, device = (None, "cpu") if is_number else (tensor.dtype, tensor.device)
        return torch.zeros((), dtype=dtype, device=device) if zero is None else zero


collectives = TensorCollectives(TensorAdapter())


def shared_empty(*size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Makes an uninitialised CPU tensor as `hvdlite.shared_empty` does. Takes the arguments of `torch.empty`."""
    shape = [each for part in size for each in (part if isinstance(part, Sequence) else [part])]
    kind = torch.get_default_dtype() if dtype is None else dtype
    memory = shared_bytes(shape, dtype_of(kind).itemsize)
    if memory.size == 0:
        return torch.empty(shape, dtype=kind, device="cpu")
    return torch.frombuffer(memory, dtype=kind).view(shape)
