"""Arrays in memory that all ranks of a host have mapped, which they reduce without copying."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite.core.dtypes import from_numpy
from hvdlite.session import shared_arena


def shared_empty(shape: int | Sequence[int], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """An uninitialised array that an all-reduce, in place or from one such array to another, need not copy.

    Whether ranks use such memory, and for the same tensors, makes a difference to the speed only. So it does before
    `init`, in a job of one rank, and with one rank on this host: then the memory is ordinary. Arrays stay valid after
    `shutdown`, as ordinary memory. A forked child sees what its parent has in them, as long as it has them, and what it
    writes there nobody else sees. Raises ValueError for a dtype that collectives do not take, and MemoryError if this
    host has no such memory left.
    """
    kind = np.dtype(dtype)
    from_numpy(kind)
    size = math.prod((shape,) if isinstance(shape, int) else shape)
    return shared_bytes(size * kind.itemsize).view(kind).reshape(shape)


def shared_bytes(nbytes: int) -> npt.NDArray[np.uint8]:
    """``nbytes`` of such memory."""
    arena = shared_arena()
    return np.empty(nbytes, np.uint8) if arena is None or nbytes == 0 else np.asarray(arena.allocate(nbytes))
