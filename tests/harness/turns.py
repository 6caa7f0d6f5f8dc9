"""Turns of the processes that share the tests of a run: while a test marked ``alone`` runs, no other does.

Each test holds a lock of one file, shared or exclusive. A waiting test holds a second lock, so that one which waits to
be alone comes next, however many others come and go. The kernel releases the locks of a process that dies.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def turn(folder: Path, is_alone: bool) -> Iterator[None]:
    """Holds a turn among those with the same ``folder``, waiting for running tests to end if necessary."""
    with (folder / "running").open("w") as running:
        with (folder / "next").open("w") as following:
            fcntl.flock(following, fcntl.LOCK_EX)
            fcntl.flock(running, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        yield
