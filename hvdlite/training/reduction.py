"""How the gradients of one bucket travel: each compressed, all of them in one collective."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Generic, Protocol, TypeVar

from hvdlite.members.process_set import ProcessSet
from hvdlite.negotiation.handle import Handle
from hvdlite.ops import Collectives, Compressor, GroupHandle, synchronize

T = TypeVar("T")


class Flight(Protocol[T]):
    """A reduction on its way."""

    @property
    def tensors(self) -> Sequence[T]:
        """What was started."""

    def finish(self) -> list[T]:
        """Waits, and gives the reduced tensors: for each of ``tensors`` itself, or else a new one.

        It may be called again, above all when a signal handler has interrupted it.
        """


class Reduction(Generic[T]):
    """The choices that hold for all gradients of an optimizer.

    Front ends whose tensors may be written override what is special about theirs: how a tensor is packed for its
    journey, and unpacked.
    """

    is_in_place = False

    def __init__(
        self,
        collectives: Collectives[T],
        compression: Compressor,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> None:
        self.compression = compression
        self.op = op
        self.process_set = process_set
        self._collectives = collectives
        self._prescale = prescale
        self._postscale = postscale

    def start(self, name: str, tensors: Sequence[T], places: Sequence[Any] = ()) -> Flight[T]:
        """Starts the reduction of ``tensors`` under one name; of ``places``, each is for what travels for a tensor.

        Raises ValueError for a tensor that cannot be sent.
        """
        packed = [self.pack(tensor, place) for tensor, place in zip_longest(tensors, places)]
        sent = [tensor for tensor, _ in packed]
        how = (None, name, self.op, self._prescale, self._postscale, self.process_set)
        ops = self._collectives
        handle: Handle | GroupHandle
        if len(sent) == 1:
            handle = (ops.allreduce_async_ if self.is_in_place else ops.allreduce_async)(sent[0], *how)
        else:
            handle = (ops.grouped_allreduce_async_ if self.is_in_place else ops.grouped_allreduce_async)(sent, *how)
        return _Flight(self, tensors, [context for _, context in packed], handle)

    def pack(self, tensor: T, place: Any) -> tuple[T, Any]:
        """What travels for ``tensor``, and what `unpack` needs to know."""
        return self.compression.compress(tensor)

    def unpack(self, tensor: T, reduced: T, context: Any) -> T:
        """What has arrived for ``tensor``, from the reduction of what travelled."""
        found: T = self.compression.decompress(reduced, context)
        return found


class _Flight(Generic[T]):
    __slots__ = ("_contexts", "_handle", "_reduced", "_reduction", "tensors")

    tensors: Sequence[T]

    def __init__(
        self, reduction: Reduction[T], tensors: Sequence[T], contexts: Sequence[Any], handle: Handle | GroupHandle
    ) -> None:
        self.tensors = tensors
        self._reduction = reduction
        self._contexts = contexts
        self._handle = handle
        self._reduced: list[T] | None = None

    def finish(self) -> list[T]:
        handle = self._handle
        if self._reduced is None:  # kept before the handle is used up: an interrupt may come between
            handles = handle.handles if isinstance(handle, GroupHandle) else (handle,)
            for each in handles:
                if not each.is_done:
                    assert each.group is not None
                    each.group.wait(each)
            self._reduced = [each.output for each in handles]
        synchronize(handle)
        unpack = self._reduction.unpack
        return [
            unpack(tensor, reduced, context)
            for tensor, reduced, context in zip(self.tensors, self._reduced, self._contexts, strict=True)
        ]
