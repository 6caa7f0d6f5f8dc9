"""One view of a tensor for everything below the front ends: address, element type, shape, owner, device."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hvdlite.tensors.device import CPU, Device
from hvdlite.tensors.dtypes import BY_NUMPY, ElementType, element_type

Buffer = tuple[int, ElementType, tuple[int, ...], Any, Device]
"""Contiguous memory of one tensor: address, element type, shape, owner, device. A plain tuple, because every submit
makes one. The owner keeps the memory alive: an array of numpy's own class, or a `Storage`. The shape may be of a front
end's own kind of tuple."""

Spans = npt.NDArray[np.uint64]
"""Rows of (address to read, address to write, bytes); shape ``(n, 3)``. Equal addresses mean in place."""

Matrix = npt.NDArray[np.uint64]
"""Bytes from each rank to each other; shape ``(size, size)``, row by sender."""


class Storage(Protocol):
    """Memory that its user may still resize, which moves it."""

    def data_ptr(self) -> int:
        """Where the memory begins now."""

    def __len__(self) -> int:
        """How many bytes it has now."""


def holds(owner: Any, address: int, nbytes: int) -> bool:
    """Whether ``owner`` still has the ``nbytes`` at ``address``. Arrays do: numpy refuses to resize them meanwhile."""
    if owner is None or type(owner) is np.ndarray:
        return True
    begin = owner.data_ptr()
    return bool(begin <= address and address + nbytes <= begin + len(owner))


class NotAnArray(ValueError):
    """What was passed is no tensor of the front end."""


def of_array(array: npt.NDArray[Any], is_written: bool = False) -> Buffer:
    """The buffer of a numpy array: of its memory, or of a copy if it is not C-contiguous and aligned.

    Raises NotAnArray, or ValueError for a dtype without a fixed size and for memory that is to be written and is
    read-only or not contiguous.
    """
    try:  # most arrays pass: their memory is contiguous and may be written
        dtype, address = BY_NUMPY[array.dtype], _address_of(_first_byte_of(array))
    except (AttributeError, KeyError, TypeError, ValueError):
        pass  # what is raised below is not to be raised in the course of this
    else:
        # No element is longer than 8 bytes.
        if type(array) is np.ndarray and not (address & 7 and address % dtype.itemsize):
            return address, dtype, array.shape, array, CPU
    return _looked_at(array, is_written)


def address_of(array: npt.NDArray[Any]) -> int:
    """Where the memory of a C-contiguous array begins, for most in a fifth of the time of numpy's own answer."""
    try:
        return _address_of(_first_byte_of(array))
    except (TypeError, ValueError):  # read-only, empty, or of a dtype that Python's buffers do not know
        return int(array.ctypes.data)


_address_of = ctypes.addressof
_first_byte_of: Any = ctypes.c_char.from_buffer


def _advice(thing: object) -> str:
    if isinstance(thing, (int, float, complex)):
        return "numpy.array([x]) makes one of one row"
    is_of_torch = type(thing).__module__.partition(".")[0] == "torch"
    return "hvdlite.torch takes tensors" if is_of_torch else "numpy.asarray(x) makes one"


def _looked_at(array: npt.NDArray[Any], is_written: bool) -> Buffer:
    if not isinstance(array, np.ndarray):
        raise NotAnArray(f"expected a numpy array, got {type(array).__name__}; {_advice(array)}")
    dtype, flags = element_type(array.dtype), array.flags
    if is_written and not flags.writeable:
        raise ValueError("the array is read-only, so nothing can be written in place; use the form without _ or a copy")
    if not (flags.c_contiguous and flags.aligned):
        if is_written:
            raise ValueError(
                f"an array of shape {array.shape} that is not contiguous and aligned cannot be written in place; "
                "use the form without _, or numpy.ascontiguousarray(array)"
            )
        array = np.array(array, order="C")
    return int(array.ctypes.data), dtype, array.shape, np.asarray(array), CPU


def paired(reads: Spans, writes: Spans) -> Iterator[tuple[int, int, int]]:
    """(address to read, address to write, bytes) of pieces that copy all of ``reads`` into ``writes``, in order."""
    targets = iter(writes.tolist())
    write = room = 0
    for read, _, nbytes in reads.tolist():
        while nbytes:
            while not room:
                _, write, room = next(targets)
            piece = min(nbytes, room)
            yield read, write, piece
            read, write, nbytes, room = read + piece, write + piece, nbytes - piece, room - piece


def sliced(spans: Spans, count: int, step: int) -> list[Spans]:
    """``spans`` cut into ``count`` slices of nearly equal bytes that follow each other.

    Cuts lie at multiples of ``step`` bytes from the beginning, so the last slice may be a little longer, and others
    empty. Spans that have the same bytes row by row are cut alike.
    """
    total = int(spans[:, 2].sum())
    cuts = [total * index // count // step * step for index in range(count)] + [total]
    if cuts[-2] == 0:  # a short cut for small batches
        return [spans[:0]] * (count - 1) + [spans]
    ends = np.cumsum(spans[:, 2], dtype=np.uint64)
    return [_between(spans, ends, begin, end) for begin, end in pairwise(cuts)]


def _between(spans: Spans, ends: npt.NDArray[np.uint64], begin: int, end: int) -> Spans:
    """The spans of bytes ``begin`` to ``end``; ``ends`` are the positions where the rows end."""
    if begin == end:
        return spans[:0]
    first, last = np.searchsorted(ends, np.array([begin + 1, end], np.uint64))
    rows = spans[first : last + 1].copy()
    rows[-1, 2] -= ends[last] - np.uint64(end)
    skipped = np.uint64(begin) - (ends[first] - spans[first, 2])
    rows[0, :2] += skipped
    rows[0, 2] -= skipped
    return rows


def in_place(spans: Spans) -> Spans:
    """The rows of what has been written: read where ``spans`` write."""
    return spans.take([1, 1, 2], axis=1)
