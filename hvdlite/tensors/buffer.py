"""The view of a tensor below the front ends: address, element type, shape, owner, device."""

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
    """Memory that the user may still resize, which moves it."""

    def data_ptr(self) -> int:
        """Returns the address of the memory now."""

    def __len__(self) -> int:
        """Returns its number of bytes now."""


def holds(owner: Any, address: int, nbytes: int) -> bool:
    """True if ``owner`` still has ``nbytes`` at ``address``. Arrays do: numpy refuses to resize them meanwhile.

    True also for no bytes: the address of an empty tensor need not be in its storage.
    """
    if not nbytes or owner is None or type(owner) is np.ndarray:
        return True
    begin = owner.data_ptr()
    return bool(begin <= address and address + nbytes <= begin + len(owner))


class NotAnArray(ValueError):
    """The argument is not a tensor of the front end."""


def of_array(array: npt.NDArray[Any], is_written: bool = False) -> Buffer:
    """Makes the buffer of a numpy array, or of a copy if the array is not C-contiguous and aligned.

    Raises NotAnArray, and ValueError for a dtype without a fixed size, or for memory to write that is read-only or
    not contiguous.
    """
    try:  # most arrays are contiguous and writable
        dtype = BY_NUMPY[array.dtype]
        address = _address_of(_first_byte_of(array))
    except (AttributeError, KeyError, TypeError, ValueError):
        pass  # errors raised below do not chain to this one
    else:
        # No element is longer than 8 bytes.
        if type(array) is _ARRAY and not (address & 7 and address % dtype.itemsize):
            return address, dtype, array.shape, array, CPU
    return _looked_at(array, is_written)


def address_of(array: npt.NDArray[Any]) -> int:
    """The address of a C-contiguous array, for most arrays several times as fast as numpy's own."""
    try:
        return _address_of(_first_byte_of(array))
    except (TypeError, ValueError):  # read-only, empty, or of a dtype that Python's buffers lack
        return int(array.ctypes.data)


_ARRAY = np.ndarray
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
    """Spans (address to read, address to write, bytes) that copy all of ``reads`` into ``writes``, in order."""
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
    """Cuts ``spans`` into ``count`` consecutive slices of nearly equal bytes.

    Cuts lie at multiples of ``step`` bytes from the beginning, so the last slice may be a little longer, and others
    empty. Spans that have the same bytes row by row are cut alike.
    """
    total = int(spans[:, 2].sum())
    cuts = [total * index // count // step * step for index in range(count)] + [total]
    if cuts[-2] == 0:  # a shortcut for small batches
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
    """Returns spans that read and write where ``spans`` write."""
    return spans.take([1, 1, 2], axis=1)
