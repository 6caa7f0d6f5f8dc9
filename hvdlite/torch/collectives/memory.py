"""Tensors in memory mapped by all ranks of a host."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvdlite.ops.memory import shared_bytes
from hvdlite.torch.collectives.adapter import dtype_of


def shared_empty(*size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Makes an uninitialised CPU tensor as `hvdlite.shared_empty` does. Arguments are those of `torch.empty`."""
    shape = [each for part in size for each in (part if isinstance(part, Sequence) else [part])]
    kind = torch.get_default_dtype() if dtype is None else dtype
    memory = shared_bytes(shape, dtype_of(kind).itemsize)
    if memory.size == 0:
        return torch.empty(shape, dtype=kind, device="cpu")
    return torch.frombuffer(memory, dtype=kind).view(shape)
