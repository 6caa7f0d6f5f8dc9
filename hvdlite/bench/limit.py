"""The speed of this machine's memory, as candidates that move as many bytes and compute next to nothing.

*memcpy* is one copy by one core, while all others idle. *update* has every rank read and write back a vector of its
own, all at once. For vectors beyond the caches, no all-reduce in place is much faster: it must read each rank's input
and write each rank's output.
"""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np

import hvdlite as hvd
from hvdlite.bench.measuring.timing import Candidate
from hvdlite.bench.sweep import Entrant, Work


def memcpy(work: Work) -> Candidate:
    """Copies as many bytes on rank 0, while the other ranks sleep."""
    nbytes = work.moved
    if hvd.rank() != 0:
        return Candidate("memcpy", lambda: None, lambda: True)
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    room = ctypes.c_char * nbytes
    copy = partial(
        ctypes.memmove, room.from_buffer(target.data), room.from_buffer(source.data), nbytes
    )  # hold the arrays

    def is_right() -> bool:
        target.fill(0)
        copy()
        return bool(target.all())

    return Candidate("memcpy", copy, is_right)


def update(work: Work) -> Candidate:
    """Adds one to each byte of as many, on every rank."""
    vector = np.zeros(work.moved, np.uint8)
    add = partial(np.add, vector, np.uint8(1), out=vector)

    def is_right() -> bool:
        vector.fill(0)
        add()
        return bool((vector == 1).all())

    return Candidate("update", add, is_right)


LIMITS: dict[str, Entrant] = {"memcpy": memcpy, "update": update}
"""By label."""
