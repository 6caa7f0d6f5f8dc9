"""Reduction of torch gradients.

A tensor is reduced in its own memory if that is contiguous and not compressed. Otherwise a copy travels, because ranks
may lay the same parameter out differently; it is made in the tensor's *place*, if it has one.

A sparse gradient alone in its bucket is gathered (see `sparse`). In a bucket with others it travels densely: only then
do ranks submit the same bucket, also those that have not yet seen that this gradient is sparse.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvdlite.members.process_set import ProcessSet
from hvdlite.ops import Compressor
from hvdlite.tensors.streams import Told
from hvdlite.torch.collectives.adapter import dense
from hvdlite.torch.collectives.sparse import sparse_allreduce_async
from hvdlite.torch.collectives.tensors import collectives
from hvdlite.torch.compression import wire_dtype
from hvdlite.training.reduction import Flight, Reduction


class TensorReduction(Reduction[torch.Tensor]):
    """The choices that hold for all gradients of an optimizer.

    With one of our compressions the result has the dtype that travelled, and the caller copies it into the
    tensor. Sparse gradients stay sparse. Places are those of `hvdlite.torch.optimizer.places`.
    """

    is_in_place = True

    def __init__(
        self, compression: Compressor, op: int, predivide_factor: float, densifies: bool, process_set: ProcessSet
    ) -> None:
        super().__init__(collectives, compression, op, 1 / predivide_factor, predivide_factor, process_set)
        self.wire_dtype = functools.cache(functools.partial(wire_dtype, compression))
        self._densifies = densifies

    def start(self, name: str, tensors: Sequence[torch.Tensor], places: Sequence[Any] = ()) -> Flight[torch.Tensor]:
        if len(tensors) == 1 and tensors[0].layout is torch.sparse_coo and not self._densifies:
            return self._start_sparse(name, tensors[0])
        return super().start(name, tensors, places)

    def pack(self, tensor: torch.Tensor, place: Any) -> tuple[torch.Tensor, Any]:
        if tensor.layout is torch.sparse_coo:
            tensor = tensor.to_dense()
        dtype = self.wire_dtype(tensor.dtype)
        taken = None if place is None or dtype is None else place.take(tensor, dtype)
        if taken is not None:
            return taken, tensor.dtype
        compressed, context = self.compression.compress(tensor)
        return dense(compressed), context

    def unpack(self, tensor: torch.Tensor, reduced: torch.Tensor, context: Any) -> torch.Tensor:
        if tensor.layout is torch.strided and self.wire_dtype(tensor.dtype) is not None:
            return reduced  # copying it converts it, without a tensor in between whose pages are new to the process
        found: torch.Tensor = self.compression.decompress(reduced, context)
        return found.to_sparse(tensor.sparse_dim()) if tensor.layout is torch.sparse_coo else found

    def _start_sparse(self, name: str, tensor: torch.Tensor) -> Flight[torch.Tensor]:
        # The scale factors of an optimizer only say when to divide for the average: here, once after the sum.
        gathered = tensor.coalesce()
        values, context = self.compression.compress(gathered.values())
        sent = _with_values(gathered, values)
        reduce = sparse_allreduce_async(sent, name, self.op, self.process_set)

        def unpack(reduced: torch.Tensor) -> torch.Tensor:
            return _with_values(reduced, self.compression.decompress(reduced.values(), context))

        return _SparseFlight(tensor, reduce, unpack)


class _SparseFlight:
    def __init__(
        self,
        tensor: torch.Tensor,
        reduce: Callable[[], torch.Tensor],
        unpack: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self.tensors = [tensor]
        self._reduce = reduce
        self._unpack = unpack
        self._reduced: torch.Tensor | None = None

    def finish(self, told: Told) -> list[torch.Tensor]:
        if self._reduced is None:
            self._reduced = self._reduce()
        return [self._unpack(self._reduced)]


def _with_values(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Returns the coalesced ``tensor`` with other values."""
    return torch.sparse_coo_tensor(tensor.indices(), values, tensor.shape, is_coalesced=True, check_invariants=False)
