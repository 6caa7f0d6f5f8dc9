"""How the gradients of one bucket travel: each compressed, all of them in one collective.

A tensor is reduced in its own memory if that is contiguous and not compressed. Otherwise a copy travels, because ranks
may lay the same parameter out differently; it is made in the tensor's *place*, if it has one.

A sparse gradient alone in its bucket is gathered (see `sparse`). In a bucket with others it travels densely: only then
do ranks submit the same bucket, also those that have not yet seen that this gradient is sparse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import zip_longest
from typing import Any, NamedTuple

import torch

from hvdlite.members.process_set import ProcessSet
from hvdlite.negotiation.handle import Handle
from hvdlite.ops import Compressor, GroupHandle, group_of, synchronize
from hvdlite.torch.collectives.adapter import dense
from hvdlite.torch.collectives.peers import has_peers
from hvdlite.torch.collectives.sparse import sparse_allreduce_async
from hvdlite.torch.collectives.tensors import collectives
from hvdlite.torch.compression import wire_dtype
from hvdlite.torch.optimizer.places import Place

Wait = Callable[[], list[torch.Tensor]]


class Reduction(NamedTuple):
    """The choices that hold for all gradients of an optimizer."""

    compression: Compressor
    op: int
    prescale: float
    postscale: float
    densifies: bool
    process_set: ProcessSet

    @property
    def is_needed(self) -> bool:
        """Whether there are other ranks to reduce with; see `has_peers`."""
        return has_peers(self.process_set)

    def burst(self) -> AbstractContextManager[None]:
        """A context in which several are started, so that other threads of this rank are woken once for all.

        Raises as `has_peers` does.
        """
        return group_of(self.process_set).burst()

    def settle(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        """The tensor to reduce instead of ``tensor``: in ``place``, if ranks can reduce it there as it is."""
        dtype = tensor.dtype
        if wire_dtype(self.compression, dtype) is not dtype:
            return tensor
        if tensor.layout is not torch.strided or not tensor.is_contiguous():
            return tensor
        settled = place.settle(tensor, dtype)
        return tensor if settled is None else settled

    def start(self, name: str, tensors: Sequence[torch.Tensor], places: Sequence[Place | None] = ()) -> Wait:
        """Starts the reduction of ``tensors`` under one name, in place where it can be.

        Returns a function that waits for them and gives the reduced ones: the tensor itself, or else a new one. It may
        be called again, above all when a signal handler has interrupted it. What
        one of our compressions made smaller may have the dtype that travelled, for the caller to copy into the tensor.
        Sparse ones stay sparse. Raises ValueError for a tensor that cannot be sent.
        """
        if len(tensors) == 1 and tensors[0].layout is torch.sparse_coo and not self.densifies:
            return self._start_sparse(name, tensors[0])
        packed = [self._packed(_densified(tensor), place) for tensor, place in zip_longest(tensors, places)]
        sent = [tensor for tensor, _ in packed]
        how = (None, name, self.op, self.prescale, self.postscale, self.process_set)
        handle: Handle | GroupHandle
        if len(sent) == 1:
            handle = collectives.allreduce_async_(sent[0], *how)
        else:
            handle = collectives.grouped_allreduce_async_(sent, *how)

        def wait() -> list[torch.Tensor]:
            synchronize(handle)  # in place, so what was sent is the result, the second time, too
            pairs = zip(tensors, packed, strict=True)
            return [self._restored(tensor, result, context) for tensor, (result, context) in pairs]

        return wait

    def _packed(self, tensor: torch.Tensor, place: Place | None) -> tuple[torch.Tensor, Any]:
        """What travels for ``tensor``, contiguous, and the compression's context."""
        dtype = wire_dtype(self.compression, tensor.dtype)
        settled = None if place is None or dtype is None else place.settle(tensor, dtype)
        if settled is not None:
            return settled, tensor.dtype
        compressed, context = self.compression.compress(tensor)
        return dense(compressed), context

    def _start_sparse(self, name: str, tensor: torch.Tensor) -> Wait:
        # The scale factors of an optimizer only say when to divide for the average: here, once after the sum.
        gathered = tensor.coalesce()
        values, context = self.compression.compress(gathered.values())
        sent = torch.sparse_coo_tensor(
            gathered.indices(), values, tensor.shape, is_coalesced=True, check_invariants=False
        )
        reduce = sparse_allreduce_async(sent, name, self.op, self.process_set)
        kept: list[torch.Tensor] = []

        def wait() -> list[torch.Tensor]:
            if not kept:
                kept.append(reduce())
            reduced = kept[0]
            values = self.compression.decompress(reduced.values(), context)
            return [
                torch.sparse_coo_tensor(
                    reduced.indices(), values, tensor.shape, is_coalesced=True, check_invariants=False
                )
            ]

        return wait

    def _restored(self, tensor: torch.Tensor, result: torch.Tensor, context: Any) -> torch.Tensor:
        if result is tensor:
            return tensor
        if tensor.layout is torch.strided and wire_dtype(self.compression, tensor.dtype) is not None:
            return result  # copying it converts it, without a tensor in between whose pages are new to the process
        result = self.compression.decompress(result, context)
        return result.to_sparse(tensor.sparse_dim()) if tensor.layout is torch.sparse_coo else result


def _densified(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense() if tensor.layout is torch.sparse_coo else tensor
