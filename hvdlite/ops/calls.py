"""From a call to a tensor in flight: what is checked, how tensors are named, and where results go.

A submit costs an entry, one lock, and one wake-up for a burst; no byte is copied.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from hvdlite.core.buffer import Buffer
from hvdlite.core.dtypes import OP_NAMES, Adasum, Average, DType, Sum
from hvdlite.core.entry import Allocate, Entry
from hvdlite.core.handle import Handle
from hvdlite.core.messages import Kind, Request
from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.core.wire import MAX_DIMENSIONS, MAX_NAME_CHARACTERS
from hvdlite.ops.adapter import Adapter
from hvdlite.ops.handles import GroupHandle, synchronize
from hvdlite.runtime.group import Group
from hvdlite.session import current

T = TypeVar("T")


Reduction = tuple[int, float, float]
"""Operation, prescale and postscale. A plain tuple, because every submit makes one."""

Draft = Callable[[str | None, T], Entry]
"""Makes the entry of one tensor under the user's name for it, or else an automatic one. Checks the tensor first, so
that a call which raises uses up no automatic name: a rank that repeats it would be out of step with the others."""


class Calls(Generic[T]):
    """What every collective does with a front end's tensors."""

    def __init__(self, adapter: Adapter[T]) -> None:
        self._adapter = adapter

    @staticmethod
    def _one(group: Group, entry: Entry, will_wait: bool = False) -> Handle:
        """Submits one tensor."""
        group.submit((entry,), will_wait)
        return entry

    @staticmethod
    def _many(
        group: Group, kind: Kind, name: str | None, tensors: Sequence[T], draft: Draft[T], will_wait: bool = False
    ) -> GroupHandle:
        """Submits several tensors, all or none, so that they become ready together on every rank."""
        tensors = list(tensors)
        count = len(tensors)
        if type(name) is str and len(name) <= _LONGEST_OF_GROUP and f"{name}_1of{count}" in group.known:
            # The group comes again, as most do: with their names, its tensors have their requests ready.
            entries = [draft(f"{name}_{number}of{count}", tensor) for number, tensor in enumerate(tensors, start=1)]
        else:
            entries = [draft("", tensor) for tensor in tensors]
            base, is_given = named(group, kind, name, "grouped")
            for number, entry in enumerate(entries, start=1):
                entry.rename(f"{base}_{number}of{count}", is_given)
        group.submit(entries, will_wait)
        return GroupHandle(entries)

    def _buffers(self, tensor: T, is_in_place: bool) -> tuple[Buffer, Buffer, T]:
        """What is read, what is written, and the tensor that it belongs to."""
        source = self._adapter.buffer(tensor, is_in_place)
        if is_in_place:
            return source, source, tensor
        output = self._adapter.empty(source.shape, tensor)
        return source, self._adapter.buffer(output), output

    def _rows_buffer(self, tensor: T, what: str) -> Buffer:
        """The memory of a tensor that is divided or joined along its first dimension."""
        source = self._adapter.buffer(tensor)
        if not source.shape:
            raise ValueError(f"{what} needs a tensor with at least one dimension; reshape a scalar to (1,)")
        return source

    def _allocator(self, like: T) -> Allocate:
        def allocate(shape: tuple[int, ...], rows: tuple[int, ...]) -> tuple[T, Buffer]:
            output = self._adapter.empty(shape, like)
            return output, self._adapter.buffer(output)

        return allocate

    @staticmethod
    def _result(handle: Handle | GroupHandle) -> Any:
        return synchronize(handle)


_LONGEST_NAME = MAX_NAME_CHARACTERS - 64  # room for what is added in groups, for messages and for gradients
_LONGEST_OF_GROUP = _LONGEST_NAME - 32  # so that it is still a user's name with a number
_UNCHANGED: Reduction = (Sum, 1.0, 1.0)
_UNSCALED: dict[int, Reduction] = {op: (op, 1.0, 1.0) for op in OP_NAMES if op != Adasum}


def entry_of(
    group: Group,
    name: str | None,
    kind: Kind,
    source: Buffer,
    target: Buffer | None,
    output: Any,
    reduction: Reduction = _UNCHANGED,
    root: int = 0,
    allocate: Allocate | None = None,
    shape: tuple[int, ...] | None = None,
    splits: tuple[int, ...] = (),
) -> Entry:
    """The entry, with its request, of one tensor."""
    op, prescale, postscale = reduction
    if shape is None:
        shape = source.shape
    # A tensor that comes again, as most do, has its request ready: it was checked, and compares at a glance.
    known = group.known.get(name) if type(name) is str else None
    asked = (name, kind, source.dtype, shape, op, prescale, postscale, root, True, splits, -1)
    if known is not None and known[1] == asked:
        request = known[1]
    else:
        if len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"tensor has {len(shape)} dimensions; at most {MAX_DIMENSIONS} are supported")
        text, is_given = named(group, kind, name)
        request = Request(text, kind, source.dtype, shape, op, prescale, postscale, root, is_given, splits)
    return Entry(request, group, source, target, allocate, output)


def group_of(process_set: ProcessSet) -> Group:
    """The group that runs collectives of ``process_set``.

    Raises HorovodInternalError before ``init``, ValueError if the set is unknown or this rank is not in it.
    """
    session = current()
    return session.everyone if process_set is global_process_set else session.sets.group_of(process_set)


def named(group: Group, kind: Kind, name: str | None, *between: Any) -> tuple[str, bool]:
    """The user's name, or else the next automatic one, and whether the user gave it: then it may come again.

    Raises ValueError for what can be no name.
    """
    if name is None:
        return group.automatic_name(kind, *between), False
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        raise ValueError(f"a tensor's name is text of at most {_LONGEST_NAME} characters, not {name!r:.60}")
    if name.startswith("hvdlite."):
        raise ValueError(f"names that begin with 'hvdlite.' are hvdlite's own; give {name!r:.60} another one")
    return name, True


def index_in(group: Group, rank: Any, what: str) -> int:
    """The index in the group of ``rank``, a number in the job. Raises ValueError, naming ``what``, if it is none."""
    number = whole_number(rank)
    index = None if number is None else group.index_of(number)
    if index is None:
        if group.ranks == tuple(range(group.size)):
            raise ValueError(f"{what} {rank!r} is not a rank of this job; it must be from 0 to {group.size - 1}")
        raise ValueError(f"{what} {rank!r} is not in the process set of ranks {list(group.ranks)}")
    return index


def whole_number(value: Any) -> int | None:
    """``value`` as an int if it is a whole number of any type."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def reduction_of(op: Any, prescale: float, postscale: float, may_be_adasum: bool = False) -> Reduction:
    """The arguments of a reduction, checked. Raises ValueError."""
    if type(op) is int and op in _UNSCALED and prescale == 1 == postscale:
        return _UNSCALED[op]
    number = op if type(op) is int else whole_number(op)  # numpy's integers are welcome
    if number is None or number not in OP_NAMES or (number == Adasum and not may_be_adasum):
        legal = ", ".join(f"hvd.{name}" for each, name in OP_NAMES.items() if each != Adasum or may_be_adasum)
        raise ValueError(f"op {OP_NAMES.get(op, op)} is not supported; use one of {legal}")
    if prescale != prescale or postscale != postscale:
        raise ValueError("a scale factor is not a number (NaN)")
    return number, float(prescale), float(postscale)


def check_reducible(dtype: DType, op: int) -> None:
    """Raises ValueError if elements of ``dtype`` cannot be reduced with ``op``."""
    if op == Average and dtype is DType.BOOL:
        raise ValueError("a bool tensor has no average; pass op=hvd.Min, Max, Sum or Product")
    if op == Adasum and not dtype.is_floating:
        raise ValueError(f"Adasum is for floating-point tensors, not {dtype}; pass op=hvd.Sum or Average")
