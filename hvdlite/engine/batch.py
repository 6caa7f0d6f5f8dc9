"""Runs one agreed batch on a data plane: entries become spans, and one native call takes all spans.

Four collectives of the plane run every kind that moves bytes: a broadcast runs as an all-gather, a reduce as a
reduce-scatter, and a gather, a scatter or a send as an all-to-all. Adasum consists of several.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast

import numpy as np

from hvdlite import native
from hvdlite.control.page import Page
from hvdlite.errors import HorovodInternalError
from hvdlite.negotiation.entry import Entry, OnDevice
from hvdlite.negotiation.kinds import KINDS
from hvdlite.negotiation.messages import Kind, Request
from hvdlite.negotiation.replica import Work
from hvdlite.negotiation.rows import Rows, received_by
from hvdlite.planes import adasum
from hvdlite.planes.base import Completion, DataPlane, Planes
from hvdlite.tensors.buffer import Spans, holds
from hvdlite.tensors.device import CPU
from hvdlite.tensors.dtypes import Adasum, Average, DType, Sum, added_as

_ARRAY = np.ndarray
_Row = tuple[int, int, int]


def run(work: Work, planes: Planes) -> Completion | None:
    """Moves the bytes of ``work``. Every rank of the group calls it with the same batch.

    Returns None once the bytes have moved, or a `Completion` if a device moves them after the call. Raises
    HorovodInternalError, before any byte moves, if a storage was resized after its tensor was submitted, or has fewer
    bytes than its tensor.
    """
    first = work.entries[0].request
    plane = planes[first.device.kind]
    _check(work.entries)
    nbytes = 0
    for entry in work.entries:
        nbytes += entry.nbytes
        if entry.owner is None and entry.group is None and entry.nbytes:  # the rank has joined
            entry.source, entry.owner = plane.zeros(entry.nbytes, cast(DType, added_as(entry.request.dtype)))
            entry.target = entry.source
    work.nbytes = nbytes
    if first.device is not CPU and first.device.kind != CPU.kind:  # a decoded message has a CPU object of its own
        marks = [entry.ready for entry in work.entries if isinstance(entry, OnDevice)]
        planes.of_device(first.device.kind).wait_for(marks)
    return _RUNNERS[KINDS[first.kind].runs_as](work, plane)


def _check(entries: Sequence[Entry]) -> None:
    if (entry := first_resized(entries)) is not None:
        raise HorovodInternalError(
            f"the storage of tensor {entry.name!r} was resized while the tensor was in flight, or to fewer bytes "
            "than the tensor has; synchronize its handle before resize_() or untyped_storage().resize_()"
        )


def first_resized(entries: Sequence[Entry]) -> Entry | None:
    """Returns the first of ``entries`` whose input has a storage that has lost some of its bytes, or None."""
    for entry in entries:
        owner = entry.owner
        if owner is None or type(owner) is _ARRAY:
            continue
        if owner.data_ptr() == entry.source and len(owner) >= entry.nbytes:  # as for most storages
            continue
        if not holds(owner, entry.source, entry.nbytes):
            return entry
    return None


class Recipe(NamedTuple):
    """How a rank makes its result of the bytes that all ranks put into a page.

    ``native`` is for the page. This rank puts ``nbytes``. ``shape`` of the result, and ``rows`` of each rank in it,
    matter to an entry with ``allocate``.
    """

    native: native.Recipe
    nbytes: int
    shape: tuple[int, ...]
    rows: Rows


def recipe_of(request: Request, rows: Rows, size: int, own: int) -> Recipe | None:
    """Returns how rank ``own`` of ``size`` runs the collective of ``request`` with the agreed ``rows``, in a page.

    None if it cannot be run so: an Adasum, or a collective of some ranks only.
    """
    kind = KINDS[request.kind]
    if request.op == Adasum or not kind.by_all:
        return None
    row_bytes = _row_bytes(request)
    received: Rows = ()
    match kind.runs_as:
        case Kind.ALLREDUCE:
            pieces = [(own, 0, request.nbytes)]
        case Kind.REDUCESCATTER:
            moved = kind.moves(request, rows, size)
            pieces = [(own, sum(moved[:own]) * row_bytes, moved[own] * row_bytes)]
        case Kind.ALLGATHER:
            received = kind.moves(request, rows, size)
            pieces = [(rank, 0, count * row_bytes) for rank, count in enumerate(received)]
        case Kind.ALLTOALL:
            moved = kind.moves(request, rows, size)
            received = received_by(moved, own)
            before = [sum(moved[rank * size : rank * size + own]) for rank in range(size)]
            pieces = [(rank, before[rank] * row_bytes, count * row_bytes) for rank, count in enumerate(received)]
        case Kind.BARRIER:
            pieces = []
        case _:
            return None
    array = (native.Piece * len(pieces))(*(native.Piece(*piece) for piece in pieces))
    nbytes = [kind.has_tensor * kind.extents.of_rank(request, rows, rank).nbytes for rank in range(size)]
    found = native.Recipe(None, array, len(pieces), kind.runs_as is Kind.ALLREDUCE, max(nbytes))
    if kind.reduces:
        dtype, op, postscale = arithmetic(request, size)
        found.reduction = ctypes.pointer(native.Reduction(int(dtype), op, request.prescale, postscale))
    return Recipe(found, nbytes[own], (sum(received), *request.shape[1:]), received)


def collect(work: Work, page: Page, timeout_s: float) -> None:
    """Runs a batch that a call has submitted, and whose bytes all ranks put into ``page``.

    Raises HorovodInternalError as `run` does, and if no bytes come for ``timeout_s``.
    """
    work.nbytes = sum(entry.nbytes for entry in work.entries)
    _check(work.entries)
    tensors = (native.Carried * len(work.entries))()
    for entry, rows, tensor in zip(work.entries, work.rows, tensors, strict=True):
        recipe = recipe_of(entry.request, rows, page.size, page.rank)
        if recipe is None:
            raise HorovodInternalError(f"tensor {entry.name!r} cannot run in the page")
        tensor.source, tensor.target, tensor.bytes = entry.source, entry.target, recipe.nbytes
        tensor.recipe = ctypes.pointer(recipe.native)
        entry.rows = recipe.rows
    page.collect(tensors, timeout_s)


def _allreduce(work: Work, plane: DataPlane) -> Completion | None:
    request = work.entries[0].request
    if request.op == Adasum:
        adasum.allreduce(work.entries, plane)
        return None
    dtype, op, postscale = arithmetic(request, plane.size)
    words: list[int] = []
    for entry in work.entries:
        words += (entry.source, entry.target, entry.nbytes)
    # Packed: faster than an array made of the list, and an all-reduce may have thousands of spans.
    spans = np.frombuffer(struct.pack(f"{len(words)}Q", *words), np.uint64).reshape(-1, 3)
    return plane.allreduce(spans, dtype, op, request.prescale, postscale)


def arithmetic(request: Request, size: int) -> tuple[DType, int, float]:
    """Returns the dtype, the operation and the postscale with which a plane of ``size`` ranks computes ``request``.

    An average is a sum with a smaller postscale, except that integers of several ranks need the operation Average.
    """
    dtype = cast(DType, added_as(request.dtype))  # the submit refused dtypes without a sum
    if request.op != Average:
        return dtype, request.op, request.postscale
    return dtype, Average if dtype.is_integer and size > 1 else Sum, request.postscale / size


def _reducescatter(work: Work, plane: DataPlane) -> Completion | None:
    request = work.entries[0].request
    dtype, op, postscale = arithmetic(request, plane.size)
    parts = _lists(plane.size)
    for entry, rows in zip(work.entries, work.rows, strict=True):
        read, row_bytes = entry.source, _row_bytes(entry.request)
        for rank, count in enumerate(_moved(entry, rows, plane)):
            parts[rank].append((read, entry.target if rank == plane.rank else 0, count * row_bytes))
            read += count * row_bytes
    return plane.reducescatter([_spans(rows) for rows in parts], dtype, op, request.prescale, postscale)


def _allgather(work: Work, plane: DataPlane) -> Completion | None:
    streams = _lists(plane.size)
    for entry, rows in zip(work.entries, work.rows, strict=True):
        moved, row_bytes = _moved(entry, rows, plane), _row_bytes(entry.request)
        write = _target(entry, moved)
        for rank, count in enumerate(moved):
            if count:
                streams[rank].append((entry.source if rank == plane.rank else 0, write, count * row_bytes))
                write += count * row_bytes
    return plane.allgather([_spans(rows) for rows in streams])


def _alltoall(work: Work, plane: DataPlane) -> Completion | None:
    size, own = plane.size, plane.rank
    sends, receives = _lists(size), _lists(size)
    matrix = np.zeros((size, size), np.uint64)
    for entry, rows in zip(work.entries, work.rows, strict=True):
        counts = _moved(entry, rows, plane)
        moved = np.reshape(np.array(counts, np.uint64), (size, size)) * np.uint64(_row_bytes(entry.request))
        matrix += moved
        read, write = entry.source, _target(entry, received_by(counts, own))
        for peer, nbytes in enumerate(moved[own].tolist()):
            sends[peer].append((read, 0, nbytes))
            read += nbytes
        for peer, nbytes in enumerate(moved[:, own].tolist()):
            receives[peer].append((0, write, nbytes))
            write += nbytes
    return plane.alltoall([_spans(rows) for rows in sends], [_spans(rows) for rows in receives], matrix)


def _moved(entry: Entry, rows: Rows, plane: DataPlane) -> Rows:
    """Returns the rows that move; see `hvdlite.negotiation.rows`."""
    return KINDS[entry.request.kind].moves(entry.request, rows, plane.size)


def _target(entry: Entry, rows: Rows) -> int:
    """Returns the address to write to. Allocates the output for ``rows``, by rank, if it does not exist yet."""
    if entry.allocate is not None:
        entry.rows = rows
        entry.output, entry.target = entry.allocate((sum(rows), *entry.request.shape[1:]), rows)
    return entry.target


def _barrier(work: Work, plane: DataPlane) -> Completion | None:
    return plane.barrier()


def _join(work: Work, plane: DataPlane) -> None:
    """Moves nothing. Batches run in order, so all batches before the join have run."""
    for entry, rows in zip(work.entries, work.rows, strict=True):
        entry.output = rows[0]
        if entry.group is not None:
            entry.group.restart_counters()  # done here, because the call may have been interrupted


_RUNNERS: dict[Kind, Callable[[Work, DataPlane], Completion | None]] = {
    Kind.ALLREDUCE: _allreduce,
    Kind.REDUCESCATTER: _reducescatter,
    Kind.ALLGATHER: _allgather,
    Kind.ALLTOALL: _alltoall,
    Kind.BARRIER: _barrier,
    Kind.JOIN: _join,
}


def _row_bytes(request: Request) -> int:
    return math.prod(request.shape[1:]) * request.dtype.itemsize


def _lists(size: int) -> list[list[_Row]]:
    return [[] for _ in range(size)]


def _spans(rows: Iterable[_Row]) -> Spans:
    return np.array(list(rows), np.uint64).reshape(-1, 3)
