"""Linux's means to leave no process behind.

A *process group* per worker receives signals as a whole; a *subreaper* becomes the parent of orphans that left their
group; a *parent-death signal* ends a process whose parent was killed before it could act.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from hvdlite.host.proc import has_signal, pids, stat_of, status_of

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_libc: Final = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signum: int, parent: int) -> None:
    """Has the kernel send ``signum`` to this process when process ``parent`` ends, and sends it now if it has."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        signal.raise_signal(signum)


def raise_limit_of_descriptors() -> tuple[int, int]:
    """Lets this process open as many files as it may. Returns the limits before, which are for its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def become_worker(parent: int, descriptors: tuple[int, int]) -> None:
    """Makes a child of process ``parent`` one that is killed with it, with its own limits of ``descriptors``."""
    resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)
    die_with_parent(signal.SIGKILL, parent)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant that loses its own."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


class Process(NamedTuple):
    """The ids of a process, its parent, its group and its session. ``state`` is that of `hvdlite.host.proc.Stat`."""

    pid: int
    state: str
    parent: int
    group: int
    session: int


def processes() -> Iterator[Process]:
    """All processes of this machine, zombies included."""
    for pid in pids():
        with suppress(OSError):  # it has ended
            stat = stat_of(pid)
            yield Process(pid, stat.state, stat.parent, stat.group, stat.session)


def children() -> list[int]:
    """The process ids of this process's children, zombies included."""
    me = os.getpid()
    return [process.pid for process in processes() if process.parent == me]


def ignores(pid: int, signum: int) -> bool:
    """True if process ``pid`` ignores ``signum`` or has ended."""
    status = status_of(pid)
    return status.get("State", "Z")[0] == "Z" or has_signal(status, "SigIgn", signum)


def signal_group(group: int, signum: int) -> bool:
    """Sends ``signum`` to all processes of ``group``. True if there are any; signal 0 only asks."""
    try:
        os.killpg(group, signum)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def signal_name(signum: int) -> str:
    """The name of a signal, as in SIGKILL."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return "unknown"


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"prctl({option})")
