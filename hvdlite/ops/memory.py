"""Arrays in memory that all ranks of a host map, so that a reduction copies nothing; and functions on memory."""

from __future__ import annotations

import ctypes
import math
import operator
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite import native
from hvdlite.engine.apart import do_apart
from hvdlite.groups.group import Group
from hvdlite.session import current, shared_arena
from hvdlite.tensors.dtypes import from_numpy


def shared_empty(shape: int | Sequence[int], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """Makes an uninitialised array in shared memory. An all-reduce between such arrays, or in place, copies nothing.

    Shared memory makes a difference to the speed only, so ranks need not use it for the same tensors. Before `init`, in
    a job of one rank, and if no other rank is on this host, the array is in ordinary memory. Arrays stay valid after
    `shutdown`, as ordinary memory. A forked child sees its parent's contents as long as the parent keeps them, and its
    own writes are private.

    Raises ValueError for an invalid shape or a dtype that collectives do not support, and MemoryError if this host has
    no shared memory left.
    """
    kind, sizes = np.dtype(dtype), shape if isinstance(shape, Sequence) else (shape,)
    from_numpy(kind)
    return shared_bytes(sizes, kind.itemsize).view(kind).reshape(sizes)


def shared_bytes(shape: Sequence[int], itemsize: int) -> npt.NDArray[np.uint8]:
    """Makes the bytes of an array for `shared_empty`. Raises ValueError for an invalid shape."""
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {tuple(shape)} has a negative dimension")
    # As Python's integers: numpy's would get into addresses, where ctypes and numpy refuse them.
    nbytes, arena = math.prod(map(operator.index, shape)) * itemsize, shared_arena()
    if arena is None or nbytes == 0:
        return np.empty(nbytes, np.uint8)
    return do_apart(lambda _: np.asarray(arena.allocate(nbytes)), "allocating shared memory")


def stream_copy(target: int, source: int, nbytes: int) -> None:
    """Copies ``nbytes`` from the address ``source`` to ``target``, bypassing the cache.

    For long tensors that other ranks read next. Without the native library, the copy goes through the cache.
    """
    if native.absence():
        ctypes.memmove(target, source, nbytes)
    else:
        native.library().hvd_stream_copy(target, source, nbytes)


def keep_freed(nbytes: int) -> None:
    """Makes the process keep ``nbytes`` more of freed memory from now on.

    Does nothing without the native library, with ``HVDLITE_KEEP_FREED=0``, and if glibc's own variables are set
    (``native/kernels/heap.cc``). Raises HorovodInternalError outside of a session.
    """
    if current().options.keep_freed and not native.absence():
        native.library().hvd_keep_freed(nbytes)


def checksum_in(group: Group) -> Callable[[int, int, int], int]:
    """Returns the checksum function for bytes that the ranks of ``group`` compare.

    Its arguments are the checksum of the bytes before (0 at first), an address, and a length. It is CRC-32C of the
    native library, or zlib's CRC-32 if some rank lacks the library.
    """
    return _zlib_crc32 if group.membership.without_native else native.library().hvd_crc32c


def _zlib_crc32(begun: int, address: int, nbytes: int) -> int:
    return zlib.crc32((ctypes.c_ubyte * nbytes).from_address(address), begun) if nbytes else begun
