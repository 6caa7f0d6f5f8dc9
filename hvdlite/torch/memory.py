"""Tensors in memory that all ranks of a host have mapped."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvdlite.ops.memory import shared_bytes
from hvdlite.torch.collectives.adapter import dtype_of


def shared_empty(*size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """As `hvdlite.shared_empty`, an uninitialised CPU tensor; arguments are those of `torch.empty`."""
    shape = [each for part in size for each in (part if isinstance(part, Sequence) else [part])]
    kind = torch.get_default_dtype() if dtype is None else dtype
    memory = shared_bytes(shape, dtype_of(kind).itemsize)
    if memory.size == 0:
        return torch.empty(shape, dtype=kind, device="cpu")
    return torch.frombuffer(memory, dtype=kind).view(shape)
