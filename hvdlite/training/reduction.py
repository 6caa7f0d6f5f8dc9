"""How an optimizer reduces gradients: in which group, and each bucket compressed and in one collective.

A front end may reduce some gradients in another way: a subclass of `Reduction` whose `start` returns another `Flight`.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Generic, Protocol, TypeVar

from hvdlite.ops import Average, Collectives, Compressor, Entry, Group, ProcessSet, Synced, global_process_set, group_of
from hvdlite.session import size

T = TypeVar("T")


def group_with_peers(process_set: ProcessSet) -> Group | None:
    """Returns the group of ``process_set``; None if this rank is not in it, or alone there.

    Raises HorovodInternalError outside of a session and ValueError for a set that is not registered, so that nobody
    trains alone without noticing.
    """
    if process_set is not global_process_set and process_set.included() is False:
        return None
    group = group_of(process_set)
    return group if group.size > 1 else None


def check_choices(op: int, predivide_factor: float, process_set: ProcessSet) -> None:
    """Raises ValueError for choices of an optimizer that do not go together, and before ``init``."""
    if predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor needs op=hvd.Average; it splits the division of an average")
    if not predivide_factor > 0:
        raise ValueError(f"gradient_predivide_factor must be positive, got {predivide_factor}")
    size()  # raises before init
    if process_set.included() is None:
        raise ValueError(f"{process_set} is not registered; pass it to hvd.init() or hvd.add_process_set() first")


class Flight(Protocol[T]):
    """A reduction in flight."""

    @property
    def tensors(self) -> Sequence[T]:
        """The tensors that it reduces."""

    @property
    def blank(self) -> Collection[int]:
        """The indices of the tensors for which no rank had a value. Valid after `finish`."""

    def finish(self, synced: Synced) -> list[T]:
        """Waits, and returns the reduced tensors: each of ``tensors`` itself, or a new one.

        Pass the same ``synced`` for flights that are finished one after the other. May be called again, for example
        after a signal handler has interrupted it.
        """


class Reduction(Generic[T]):
    """The choices for all gradients of an optimizer. Front ends may override how a tensor is packed and unpacked."""

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
        self.how = (op, prescale, postscale)

    def start(
        self, group: Group, name: str, tensors: Sequence[T], places: Sequence[Any] = (), blank: Collection[int] = ()
    ) -> Flight[T]:
        """Starts the reduction of ``tensors`` under one name. Each of ``places`` is for the packed form of its tensor.

        ``blank`` are the indices of tensors that are zeros because this rank has no value. Raises ValueError for a
        tensor that cannot be sent.
        """
        sent, contexts = [], []
        for tensor, place in zip_longest(tensors, places):
            packed, context = self.pack(tensor, place)
            sent.append(packed)
            contexts.append(context)
        entries = self._collectives.entries_of_allreduce(group, self.is_in_place, self.how, name, sent)
        for index in blank:
            entries[index].is_blank = True
        group.submit_all(entries)
        return _Flight(self, tensors, contexts, entries, blank)

    def pack(self, tensor: T, place: Any) -> tuple[T, Any]:
        """Returns the packed form of ``tensor``, which travels, and a context for `unpack`."""
        return self.compression.compress(tensor)

    def unpack(self, tensor: T, reduced: T, context: Any) -> T:
        """Converts ``reduced``, the reduction of packed tensors, to the result for ``tensor``."""
        found: T = self.compression.decompress(reduced, context)
        return found


@dataclass(slots=True, eq=False)
class _Flight(Generic[T]):
    _reduction: Reduction[T]
    tensors: Sequence[T]
    _contexts: Sequence[Any]
    _entries: Sequence[Entry[T]]
    _blank: Collection[int]  # on this rank
    _reduced: list[T] | None = None  # kept for an interrupted caller, which calls again

    @property
    def blank(self) -> Collection[int]:
        return [index for index in self._blank if self._entries[index].is_blank]

    def finish(self, synced: Synced) -> list[T]:
        entries = self._entries
        if self._reduced is None:
            for entry in entries:  # all of them, also if one fails
                if not entry.is_done:
                    assert entry.group is not None
                    entry.group.wait(entry)
            # Most tensors are on the CPU, and then this is no call.
            self._reduced = [entry.output if type(entry) is Entry else entry.result(synced) for entry in entries]
            for entry in entries:
                entry.output = None  # the thread that completed the entry may still hold it
        results = []
        for entry, tensor, output, context in zip(entries, self.tensors, self._reduced, self._contexts, strict=True):
            if entry.error is not None:
                raise copy.copy(entry.error) from entry.error.__cause__
            results.append(tensor if output is tensor else self._reduction.unpack(tensor, output, context))
        return results
