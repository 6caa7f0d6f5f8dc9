"""What Linux offers to leave no process behind.

Three nets, each for what the one before misses: a *process group* per worker takes signals as a whole; a *subreaper*
becomes the parent of orphans that left their group; a *parent-death signal* ends a process whose parent was killed
before it could do anything.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_libc: Final = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signum: int, parent: int) -> None:
    """Has the kernel send ``signum`` to this process when process ``parent`` ends, and sends it now if it has."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        signal.raise_signal(signum)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant that loses its own."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """The process ids of this process's children, zombies included."""
    me = os.getpid()
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _parent(entry) == me]


def signal_group(group: int, signum: int) -> bool:
    """Sends ``signum`` to all processes of ``group`` and returns whether there are any. Signal 0 only asks."""
    try:
        os.killpg(group, signum)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _parent(entry: Path) -> int | None:
    try:
        stat = (entry / "stat").read_bytes()
    except OSError:
        return None  # it ended while we looked
    return int(stat.rpartition(b")")[2].split()[1])


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"prctl({option})")
