"""Memory in which the ranks of a host reduce gradients without copying them.

Autograd allocates a tensor for each gradient, in memory of its own process. When the gradient is complete, and still in
the cache, it is copied to its *place*: a tensor in memory that all ranks of the host have mapped, the same in every
step, which becomes the parameter's ``grad``. That is the only copy. Autograd's memory is free for the next gradient at
once, and stays in the process for the next step (`keep_what_is_freed`).

Each place is a tensor of its own and not a view of a long one: `torch.save` and `copy.deepcopy` take all the memory
behind a view, and parameters without gradients need no place. Places are made in the order in which gradients become
ready.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.autograd.graph import increment_version

from hvdlite.ops.memory import keep_freed, stream_copy
from hvdlite.session import shared_arena
from hvdlite.torch.collectives.tensors import shared_empty

# Longer gradients are copied past the cache: a burst of them is more than it keeps until they are reduced.
_CACHED_BYTES: Final = 1 << 18


IN_PLACE: Final = object()
"""Stands for the place of a tensor that is already there, in the form that travels."""


class Place:
    """Memory in which one gradient is reduced, allocated at its first use, and again in a later session."""

    __slots__ = ("_tensor",)

    def __init__(self) -> None:
        self._tensor: torch.Tensor | None = None

    def take(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """Returns ``tensor`` as ``dtype`` in shared memory: itself if it is there, or else a contiguous copy.

        All copies have the same memory. Returns None without shared memory, or if the tensor cannot be copied there.
        """
        arena, place = shared_arena(), self._tensor
        if arena is None:
            return None
        target = 0 if place is None else place.data_ptr()
        is_there = arena.holds(target)
        if tensor is place and is_there and place.is_contiguous():
            return place
        if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.requires_grad:
            return None
        source, is_alike = tensor.data_ptr(), tensor.dtype is dtype and tensor.is_contiguous()
        if is_alike and arena.holds(source):
            return tensor
        # The user, whose gradient the place is, may have changed its shape, dtype or memory.
        if (
            place is None
            or not is_there
            or not (place.dtype is dtype and place.shape == tensor.shape and place.is_contiguous())
        ):
            place = self._tensor = None  # first, so that its memory may be used again
            try:
                place = self._tensor = shared_empty(tensor.shape, dtype=dtype)
            except (MemoryError, ValueError):  # ordinary memory will do; unsupported tensors are refused later
                return None
            target = place.data_ptr()
        if is_alike and (nbytes := tensor.nbytes) > _CACHED_BYTES:
            stream_copy(target, source, nbytes)
            increment_version(place)
            return place
        return place.copy_(tensor)


def keep_what_is_freed(nbytes: int) -> None:
    """Keeps ``nbytes`` of freed memory in the process: as much as all gradients with places have.

    Autograd's tensors for them are freed in the middle of backward. By default the allocator would return their pages
    to the system, and the next step would fault in and clear each page again.
    """
    if shared_arena() is not None:
        keep_freed(nbytes)
