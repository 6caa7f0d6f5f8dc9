"""Turns of the processes that share the tests of a run: a test marked ``alone`` runs while no other does.

Each test holds a lock of one file, shared or alone. Who waits for it holds a second one, so that a test which waits to
be alone is the next one, however many others come and go. The kernel takes the locks from a process that dies.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def turn(folder: Path, is_alone: bool) -> Iterator[None]:
    """Holds a turn of those that name the same ``folder``; waits until the tests that run have ended if need be."""
    with (folder / "running").open("w") as running:
        with (folder / "next").open("w") as following:
            fcntl.flock(following, fcntl.LOCK_EX)
            fcntl.flock(running, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        yield
