"""A process with so many files open that new descriptors are beyond what `select.select` takes."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

_OPEN: Final = 1_100  # FD_SETSIZE is 1,024
_ROOM: Final = 4_096


@contextmanager
def crowded() -> Iterator[None]:
    """A context in which this process holds 1,100 files, and may open more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as undo:
        if soft != resource.RLIM_INFINITY and soft < _ROOM:
            undo.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
            resource.setrlimit(resource.RLIMIT_NOFILE, (_ROOM, hard))
        for _ in range(_OPEN):
            undo.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        yield
