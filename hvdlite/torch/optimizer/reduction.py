"""Reduction of torch gradients.

A tensor is reduced in its own memory if that is contiguous and not compressed. Otherwise a copy travels, because ranks
may lay the same parameter out differently; it is made in the tensor's *place*, if it has one.

A sparse gradient alone in its bucket is gathered (see `sparse`). In a bucket with others it travels densely, so that
ranks submit the same bucket even if some have not yet seen that this gradient is sparse. Rows that no rank has can be
recognized after the sum: they travel as -0.0, the neutral element of addition, while any other sum, also of numbers
that cancel out, is not -0.0. So a row with zeros that some rank has is kept, unless all of its elements underflow from
below when they are scaled.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

import torch

from hvdlite.ops import Compressor, Group, ProcessSet, Synced
from hvdlite.torch.collectives.adapter import dense
from hvdlite.torch.collectives.sparse import sparse_allreduce_async, start_sparse_allreduce
from hvdlite.torch.collectives.tensors import collectives
from hvdlite.torch.compression import wire_dtype
from hvdlite.torch.optimizer.places import IN_PLACE
from hvdlite.training.reduction import Flight, Reduction


class TensorReduction(Reduction[torch.Tensor]):
    """The choices for all gradients of an optimizer. Sparse gradients stay sparse.

    With hvdlite's own compressions the result has the dtype that travelled, and the caller copies it into the tensor.
    """

    is_in_place = True

    def __init__(
        self, compression: Compressor, op: int, predivide_factor: float, densifies: bool, process_set: ProcessSet
    ) -> None:
        super().__init__(collectives, compression, op, 1 / predivide_factor, predivide_factor, process_set)
        self.wire_dtype = functools.cache(functools.partial(wire_dtype, compression))
        self._densifies = densifies

    def start(
        self,
        group: Group,
        name: str,
        tensors: Sequence[torch.Tensor],
        places: Sequence[Any] = (),
        blank: Collection[int] = (),
    ) -> Flight[torch.Tensor]:
        if len(tensors) == 1 and tensors[0].layout is torch.sparse_coo and not self._densifies:
            return _SparseFlight(self, group, name, tensors[0], bool(blank))
        return super().start(group, name, tensors, places, blank)

    def start_alone(self, name: str, tensor: torch.Tensor) -> tuple[Any, Any]:
        """Starts the reduction of one tensor; returns its handle, and the context for decompressing its result."""
        if tensor.layout is torch.sparse_coo and not self._densifies:
            return sparse_allreduce_async(tensor, name, self.op, self.process_set), None
        compressed, context = self.compression.compress(tensor.to_dense() if tensor.is_sparse else tensor)
        return collectives.allreduce_async_(compressed, None, name, *self.how, self.process_set), context

    def pack(self, tensor: torch.Tensor, place: Any) -> tuple[torch.Tensor, Any]:
        if place is IN_PLACE:
            return tensor, tensor.dtype
        own, dtype = tensor.dtype, self.wire_dtype(tensor.dtype)
        if tensor.layout is torch.sparse_coo:
            tensor = _spread(tensor.coalesce(), dtype or own)
        taken = None if place is None or dtype is None else place.take(tensor, dtype)
        if taken is not None:
            return taken, own
        if tensor.dtype is dtype:
            return dense(tensor), own
        compressed, context = self.compression.compress(tensor)
        return dense(compressed), context

    def unpack(self, tensor: torch.Tensor, reduced: torch.Tensor, context: Any) -> torch.Tensor:
        if tensor.layout is torch.strided and self.wire_dtype(tensor.dtype) is not None:
            return reduced  # the copy converts it, without another tensor, whose pages would be new to the process
        found: torch.Tensor = self.compression.decompress(reduced, context)
        return _collected(found, tensor.sparse_dim()) if tensor.layout is torch.sparse_coo else found


class _SparseFlight:
    """The gather of one sparse gradient.

    An optimizer's factors only choose when an average divides: here once, after the sum.
    """

    def __init__(
        self, reduction: TensorReduction, group: Group, name: str, tensor: torch.Tensor, is_blank: bool
    ) -> None:
        self.tensors = [tensor]
        self._compression = reduction.compression
        gathered = tensor.coalesce()
        values, self._context = self._compression.compress(gathered.values())
        sent = _with_values(gathered, values)
        self._entry, self._wait = start_sparse_allreduce(group, sent, name, reduction.op, is_blank)
        self._reduced: torch.Tensor | None = None

    @property
    def blank(self) -> Collection[int]:
        return [0] * self._entry.is_blank

    def finish(self, synced: Synced) -> list[torch.Tensor]:
        if self._reduced is None:
            self._reduced = self._wait()
        return [_with_values(self._reduced, self._compression.decompress(self._reduced.values(), self._context))]


def _with_values(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Returns the coalesced ``tensor`` with other values."""
    return torch.sparse_coo_tensor(tensor.indices(), values, tensor.shape, is_coalesced=True, check_invariants=False)


def nothing_like(parameter: torch.Tensor) -> torch.Tensor:
    """Returns a dense gradient that changes no sum."""
    dtype = parameter.dtype
    return torch.full_like(parameter, -0.0) if dtype.is_floating_point else torch.zeros_like(parameter)


def _spread(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns the coalesced ``tensor`` as a dense one of ``dtype``, with -0.0 where it has no element."""
    if not dtype.is_floating_point:
        return tensor.to_dense().to(dtype)
    spread = torch.full(tensor.shape, -0.0, dtype=dtype, device=tensor.device)
    spread[tuple(tensor.indices())] = tensor.values().to(dtype) + 0.0  # so that no element is -0.0
    return spread


def _collected(tensor: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    """Returns the elements other than -0.0 as a coalesced sparse tensor: the inverse of `_spread`."""
    if not tensor.dtype.is_floating_point:
        return tensor.to_sparse(sparse_dim)
    has_element = (tensor != 0) | ~torch.signbit(tensor)
    if tensor.dim() > sparse_dim:
        has_element = has_element.flatten(sparse_dim).any(-1)
    indices = has_element.nonzero().t()
    return torch.sparse_coo_tensor(
        indices, tensor[has_element], tensor.shape, is_coalesced=True, check_invariants=False
    )
