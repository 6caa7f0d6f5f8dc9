"""Arrays in memory mapped by all ranks of a host, which reduce them without copying."""

from __future__ import annotations

import ctypes
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite import native
from hvdlite.groups.group import Group
from hvdlite.session import current, shared_arena
from hvdlite.tensors.dtypes import from_numpy


def shared_empty(shape: int | Sequence[int], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """Makes an uninitialised array that an all-reduce, in place or from one such array to another, need not copy.

    Whether ranks use such memory, and for the same tensors, makes a difference to the speed only. So it does before
    `init`, in a job of one rank, and with one rank on this host: then the memory is ordinary. Arrays stay valid after
    `shutdown`, as ordinary memory. A forked child sees its parent's contents as long as the parent keeps them, and its
    own writes are private. Raises ValueError for a dtype that collectives do not take, and MemoryError if this
    host has no such memory left.
    """
    kind, sizes = np.dtype(dtype), shape if isinstance(shape, Sequence) else (shape,)
    from_numpy(kind)
    return shared_bytes(sizes, kind.itemsize).view(kind).reshape(sizes)


def shared_bytes(shape: Sequence[int], itemsize: int) -> npt.NDArray[np.uint8]:
    """Returns the size of such an array in bytes. Raises ValueError for an invalid shape."""
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {tuple(shape)} has a negative dimension")
    nbytes, arena = math.prod(shape) * itemsize, shared_arena()
    return np.empty(nbytes, np.uint8) if arena is None or nbytes == 0 else np.asarray(arena.allocate(nbytes))


def stream_copy(target: int, source: int, nbytes: int) -> None:
    """Copies from one address to another past the cache: for long tensors that other ranks read next, from memory.

    Without the native library, through the cache.
    """
    if native.absence():
        ctypes.memmove(target, source, nbytes)
    else:
        native.library().hvd_stream_copy(target, source, nbytes)


def keep_freed(nbytes: int) -> None:
    """Makes the process keep ``nbytes`` more of freed memory from now on, unless the user has disabled it.

    ``HVDLITE_KEEP_FREED=0`` disables it; so do glibc's own variables (``native/kernels/heap.cc``). Without the native
    library nothing changes. Raises HorovodInternalError outside of a session.
    """
    if current().options.keep_freed and not native.absence():
        native.library().hvd_keep_freed(nbytes)


def checksum_in(group: Group) -> Callable[[int, int, int], int]:
    """Returns the checksum that ranks of ``group`` compare: of the checksum of bytes before, an address, and a length.

    It is the one of the native library, unless some rank lacks that.
    """
    return _zlib_crc32 if group.membership.without_native else native.library().hvd_crc32c


def _zlib_crc32(begun: int, address: int, nbytes: int) -> int:
    return zlib.crc32((ctypes.c_ubyte * nbytes).from_address(address), begun) if nbytes else begun
