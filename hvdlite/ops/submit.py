"""From a call to an entry: checks, names, and memory for results.

A submit makes one entry for each tensor, and copies no bytes.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import repeat
from typing import Any, Generic, Protocol, TypeVar

from hvdlite.engine.batch import arithmetic
from hvdlite.errors import HorovodInternalError
from hvdlite.groups.group import Group
from hvdlite.negotiation.cache import Known
from hvdlite.negotiation.entry import Allocate, Entry, OnDevice, converted
from hvdlite.negotiation.handle import Handle
from hvdlite.negotiation.kinds import KINDS
from hvdlite.negotiation.messages import EMPTY_GROUP, Kind, Request
from hvdlite.negotiation.unnamed import Unnamed
from hvdlite.negotiation.wire import MAX_DIMENSIONS, MAX_NAME_CHARACTERS
from hvdlite.ops.adapter import Adapter
from hvdlite.ops.handles import GroupHandle
from hvdlite.ops.table import FORMS
from hvdlite.planes.base import DevicePlane
from hvdlite.tensors.buffer import Buffer, NotAnArray, holds
from hvdlite.tensors.device import CPU, Device
from hvdlite.tensors.dtypes import (
    BY_NAME,
    FLOAT8,
    OP_NAMES,
    Adasum,
    Average,
    DType,
    ElementType,
    Sum,
    added_as,
    is_complex,
)
from hvdlite.tensors.streams import Streams

T = TypeVar("T")


Reduction = tuple[Any, float, float]
"""Operation, prescale and postscale, as the caller passed them. A plain tuple, because every submit makes one."""


class Draft(Protocol[T]):
    """Makes the entry of one tensor."""

    def __call__(self, name: str | None, tensor: T, length: int = 0, /) -> Entry[T]:
        """Makes the entry of ``tensor``, with ``name`` or, if that is None, with an automatic name.

        ``length`` is the number of tensors in its group; 0: it is in no group.
        """


class Calls(Generic[T]):
    """The steps that all collectives share, for the tensors of one front end."""

    def __init__(self, adapter: Adapter[T]) -> None:
        self._adapter = adapter
        self._entry_of: Callable[..., Entry[Any]] = entry_of if adapter.finish is None else self._entry_to_finish

    def draft(self, form: str, group: Group, tensors: Any, **arguments: Any) -> Handle[Any] | GroupHandle[Any]:
        """Returns the handle of a collective that is not submitted yet. ``form`` is a name in `hvdlite.ops.table`.

        ``tensors`` is a list for a grouped form, and one tensor for any other. ``arguments`` are the further arguments
        of the form, without ``process_set``.
        """
        collective, _, is_in_place = FORMS[form]
        flags = (is_in_place,) * collective.is_in_place
        handle: Handle[Any] | GroupHandle[Any] = getattr(self, collective.draft)(group, *flags, tensors, **arguments)
        return handle

    def _entry_to_finish(self, *args: Any, **kwargs: Any) -> Entry[T]:
        """Is `entry_of` for a front end whose `Adapter` has a ``finish``."""
        return converted(entry_of(*args, **kwargs), self._finished)

    def _finished(self, output: Any) -> Any:
        finish = self._adapter.finish
        assert finish is not None
        if type(output) is tuple:  # of an alltoall: with the number of rows from each rank
            received, rows = output
            return finish(received), rows
        return finish(output)

    @staticmethod
    def _many(group: Group, kind: Kind, name: str | None, tensors: Sequence[T], draft: Draft[T]) -> GroupHandle[T]:
        """Makes the handle of several tensors that become ready on every rank together."""
        tensors = list(tensors)
        count = len(tensors)
        if count and type(name) is str and len(name) <= _LONGEST_OF_GROUP and f"{name}[0]" in group.known:
            # Most groups are repeated: `entry_of` then finds the requests of the tensors by these names.
            entries = list(map(draft, _kept_names_in(name, count), tensors, repeat(count)))
        else:
            entries = [draft("", tensor, count) for tensor in tensors]
            if not entries:  # a placeholder, because other ranks may have tensors
                entries = [entry_of(group, "", Kind.ALLREDUCE, _NO_ELEMENTS, group_length=EMPTY_GROUP)]
            base, is_given = named(group, kind, name, "grouped")
            for entry, each in zip(entries, _names_in(base, len(entries)), strict=True):
                entry.rename(each, is_given)
        return GroupHandle(entries, not count)

    def _alike(
        self,
        group: Group,
        kind: Kind,
        is_in_place: bool,
        reduction: Reduction,
        root: int,
        name: str | None,
        tensor: T,
        length: int = 0,
    ) -> Entry[T]:
        """Makes the entry of a collective whose output has the shape and dtype of its input."""
        try:
            source = self._adapter.buffer(tensor, is_in_place)
        except NotAnArray as refusal:
            scalar, convert = self._of_number(tensor, refusal)
            if is_in_place:
                raise ValueError("a number cannot be written in place; use the form without _") from None
            return converted(self._alike(group, kind, False, reduction, root, name, scalar, length), convert)
        if is_in_place:
            return entry_of(group, name, kind, source, source[0], tensor, reduction, root, length)
        output, target = self._adapter.empty(source[2], tensor)
        return self._entry_of(group, name, kind, source, target, output, reduction, root, length)

    def _of_number(self, value: Any, refusal: NotAnArray) -> tuple[T, Callable[[T], Any]]:
        """Calls `Adapter.of_number`. Raises ``refusal`` if ``value`` is no number."""
        found = self._adapter.of_number(value)
        if found is None:
            raise refusal
        return found

    def _rows_buffer(self, tensor: T, kind: Kind) -> tuple[Buffer, tuple[int, ...]]:
        """Returns the memory and the shape of a tensor with rows. Raises ValueError for one without dimensions."""
        source = self._adapter.buffer(tensor)
        _, _, shape, _, _ = source
        if not shape:
            raise ValueError(f"{kind} needs a tensor with at least one dimension; reshape a scalar to (1,)")
        return source, shape

    def _allocator(self, like: T) -> Allocate:
        def allocate(shape: tuple[int, ...], rows: tuple[int, ...]) -> tuple[Any, int]:
            return self._adapter.empty(shape, like)

        return allocate


_LONGEST_NAME = MAX_NAME_CHARACTERS - 64  # leaves room for the suffixes of groups, messages and gradients
_LONGEST_OF_GROUP = _LONGEST_NAME - 32  # with an index it is still a valid name
_SURROGATES = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")

UNCHANGED: Reduction = (Sum, 1.0, 1.0)
"""For collectives that do not reduce."""

NOTHING: Buffer = (0, DType.UINT8, (), None, CPU)
"""For collectives without a tensor."""

_NO_ELEMENTS: Buffer = (0, DType.UINT8, (0,), None, CPU)


def _names_in(base: str, count: int) -> tuple[str, ...]:
    return tuple(base + f"[{number}]" for number in range(count))  # `+`, because ``base`` may be an `Unnamed`


_kept_names_in = lru_cache(maxsize=256)(_names_in)  # making names takes a noticeable part of a submit


def entry_of(
    group: Group,
    name: str | None,
    kind: Kind,
    source: Buffer,
    target: int = 0,
    output: Any = None,
    reduction: Reduction = UNCHANGED,
    root: int = 0,
    group_length: int = 0,
    allocate: Allocate | None = None,
    splits: tuple[int, ...] = (),
) -> Entry[Any]:
    """Makes the entry of one tensor and its request; see `Entry` and `Request`.

    Raises ValueError if ``name``, ``source`` or ``reduction`` is invalid, or if the group cannot use the device.
    """
    address, dtype, shape, owner, device = source
    op, prescale, postscale = reduction
    # Most tensors are repeated: their request was checked before, and compares fast if it is the same object.
    known = group.known.get(name) if type(name) is str else None
    asked: object = (name, kind, dtype, shape, op, prescale, postscale, root, True, splits, -1, group_length, device)
    if known is not None and (request := known.request) == asked:
        nbytes = known.nbytes
    elif type(name) is not str and (known := _known_unnamed(group, asked)) is not None:
        entry = Entry(known.request, group, address, target, known.nbytes, owner, output, allocate)
        entry.name = group.unnamed(kind) if name is None else name
        return entry
    else:
        if len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"tensor has {len(shape)} dimensions; at most {MAX_DIMENSIONS} are supported")
        checked = _checked(reduction, kind, dtype, device)
        nbytes = math.prod(shape) * dtype.itemsize
        if reason := group.planes.absence_for(device):
            raise ValueError(reason)
        if not holds(owner, address, nbytes):
            raise ValueError(
                f"the tensor has {nbytes} bytes, but its storage was resized to fewer; pass tensor.clone()"
            )
        text, is_given = named(group, kind, name)
        request = Request(text, kind, dtype, tuple(shape), *checked, root, is_given, splits, -1, group_length, device)
        if device is not CPU:
            _choose(group.planes.of_device(device.kind), request)
    if device is not CPU:
        return _on_device(request, group, address, target, nbytes, owner, output, allocate)
    return Entry(request, group, address, target, nbytes, owner, output, allocate)


def _known_unnamed(group: Group, asked: Any) -> Known | None:
    """Returns what is known of a tensor without a name. ``asked`` has the fields of its request."""
    _, kind, dtype, shape, op, prescale, postscale, root, _, splits, _, group_length, device = asked
    if splits or group_length or device is not CPU:
        return None
    with suppress(TypeError):  # a scale in an array has no hash
        return group.known_unnamed.get((kind, dtype, shape, op, prescale, postscale, root))
    return None


def _choose(plane: DevicePlane, request: Request) -> None:
    """Makes ``plane`` use the device of ``request``. Raises ValueError if it cannot use it, or cannot reduce so."""
    if KINDS[request.kind].reduces:
        dtype, op, postscale = arithmetic(request, plane.size)
        if reason := plane.unsupported_reduction(request.device, dtype, op, request.prescale, postscale):
            raise ValueError(reason)
    plane.choose(request.device)


def _on_device(
    request: Request,
    group: Group,
    address: int,
    target: int,
    nbytes: int,
    owner: Any,
    output: Any,
    allocate: Allocate | None,
) -> Entry[Any]:
    """Makes the entry of a tensor that is not in CPU memory. Call it after the result is allocated."""
    streams: Any = getattr(owner, "streams", None)
    device = request.device
    mark = None
    if streams is not None:
        mark = group.planes.of_device(device.kind).record(device.ordinal, streams.current())
    if mark is None:
        return Entry(request, group, address, target, nbytes, owner, output, allocate)
    entry = OnDevice(request, group, address, target, nbytes, owner, output, _aside(allocate, streams))
    entry.streams, entry.ready = streams, mark
    return entry


def _aside(allocate: Allocate | None, streams: Streams) -> Allocate | None:
    """Makes ``allocate`` return memory that no stream uses any more, because it is called later, in any thread."""
    if allocate is None:
        return None
    allocates = allocate

    def allocate_aside(shape: tuple[int, ...], rows: tuple[int, ...]) -> tuple[Any, int]:
        with streams.allocating():
            return allocates(shape, rows)

    return allocate_aside


def named(group: Group, kind: Kind, name: str | None, *between: Any) -> tuple[str, bool]:
    """Returns ``name`` and True, or an `Unnamed`, which ``name`` may be, and False. Only names of users are cacheable.

    Raises ValueError for an invalid name. ``between`` is as in `Group.unnamed`.
    """
    if name is None:
        return group.unnamed(kind, *between), False
    if type(name) is Unnamed:
        return name, False
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        raise ValueError(f"a tensor's name must be a string of at most {_LONGEST_NAME} characters, not {name!r:.60}")
    if name.startswith("hvdlite."):
        raise ValueError(f"names that begin with 'hvdlite.' are reserved; rename {name!r:.60}")
    if not name.isascii() and _SURROGATES.search(name):  # JSON would make them one character, and so another name
        raise ValueError(f"a tensor's name has two surrogates for one character; rename {name!r:.60}")
    return name, True


def in_order(group: Group, name: str) -> str:
    """Returns ``name``, for blocking collectives of one thread, whose order is the same on all ranks.

    Raises ValueError if another thread has such collectives, too.
    """
    group.admit(Kind.ALLGATHER, name)
    return name


def index_in(group: Group, rank: Any, what: str) -> int:
    """Converts ``rank``, a number in the job, to a group index. The ValueError of an invalid rank names ``what``."""
    number = whole_number(rank)
    index = None if number is None else group.index_of(number)
    if index is None:
        if group.ranks == tuple(range(group.size)):
            raise ValueError(f"{what} {rank!r} is not a rank of this job; it must be from 0 to {group.size - 1}")
        raise ValueError(f"{what} {rank!r} is not in the process set of ranks {list(group.ranks)}")
    return index


def whole_number(value: Any) -> int | None:
    """Converts a whole number of any type, such as numpy's, to an int; None for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def _checked(reduction: Reduction, kind: Kind, dtype: ElementType, device: Device) -> tuple[int, float, float]:
    """Checks ``reduction``, and returns it as plain numbers.

    Raises ValueError if ``kind`` cannot reduce ``dtype`` in this way, and HorovodInternalError, as Horovod does, for
    Adasum in any kind but an all-reduce.
    """
    op, prescale, postscale = reduction
    row = KINDS[kind]
    number = op if type(op) is int else whole_number(op)  # may be an integer of numpy
    if number is None or number not in OP_NAMES or (number == Adasum and not row.takes_adasum):
        legal = ", ".join(f"hvd.{name}" for each, name in OP_NAMES.items() if each != Adasum or row.takes_adasum)
        refused = HorovodInternalError if number == Adasum else ValueError
        raise refused(f"op {OP_NAMES.get(op, op)} is not supported in {kind}; use one of {legal}")
    if prescale != prescale or postscale != postscale:
        raise ValueError("a scale factor is not a number (NaN)")
    if not row.reduces:
        return number, 1.0, 1.0
    if dtype in FLOAT8 and device.kind == CPU.kind:
        raise ValueError(
            f"dtype {dtype} is not supported by {kind} on CPUs; pass tensor.float(), or tensor.cuda(), since NCCL adds "
            "it on GPUs of compute capability 9.0 or newer"
        )
    if added_as(dtype) is None:
        raise ValueError(
            f"dtype {dtype} is not supported by {kind}, which supports native {', '.join(BY_NAME)} and complex"
        )
    if is_complex(dtype) and number not in (Sum, Average):
        raise ValueError(f"op {OP_NAMES[number]} of complex numbers is not supported; use hvd.Sum or hvd.Average")
    if number == Average and dtype is DType.BOOL:
        raise ValueError("a bool tensor has no average; pass op=hvd.Min, Max, Sum or Product")
    if number == Adasum and not dtype.is_floating:
        raise ValueError(f"Adasum is for floating-point tensors, not {dtype}; pass op=hvd.Sum or Average")
    if number == Adasum and device.kind != CPU.kind:
        raise ValueError(f"Adasum is for tensors in CPU memory, not on {device}; pass a copy in CPU memory")
    return number, float(prescale), float(postscale)
