"""The speed of this machine's memory as a candidate: one copy of as many bytes, by one core, while all others idle.

An all-reduce that moves its payload as fast as this is at the limit of what copying can do.
"""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np

import hvdlite as hvd
from hvdlite.bench.timing import Candidate

LABEL = "memcpy"


def memcpy(nbytes: int) -> Candidate:
    """Copies ``nbytes`` on rank 0; the other ranks do nothing, and wait for it asleep."""
    if hvd.rank() != 0:
        return Candidate(LABEL, lambda: None, lambda: True)
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    room = ctypes.c_char * nbytes
    copy = partial(
        ctypes.memmove, room.from_buffer(target.data), room.from_buffer(source.data), nbytes
    )  # hold the arrays

    def is_right() -> bool:
        target.fill(0)
        copy()
        return bool(target.all())

    return Candidate(LABEL, copy, is_right)
