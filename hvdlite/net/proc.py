"""Facts about this host and about any process on it, of any user, from ``/proc``."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    """``state`` is ``T`` for a process that a signal stopped, and ``t`` for one that a debugger holds.

    The others are process ids.
    """

    state: str
    parent: int
    group: int
    session: int


def stat_of(pid: int) -> Stat:
    """The state of ``pid`` and what it belongs to. Raises OSError if it has ended."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split(None, 4)  # the name before them may hold anything
    if len(fields) < 4:
        raise ProcessLookupError(f"process {pid} has ended")
    return Stat(fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]))


class Usage(NamedTuple):
    """The processor time that all threads of a process have had, and the memory that it has mapped and touched."""

    cpu_s: float
    memory_bytes: int


def usage_of(pid: int) -> Usage:
    """What ``pid`` has used. Raises OSError if it has ended."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split(None, 13)
    with open(f"/proc/{pid}/statm", "rb") as file:
        pages = file.read().split()
    if len(fields) < 14 or len(pages) < 2:
        raise ProcessLookupError(f"process {pid} has ended")
    return Usage((int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND, int(pages[1]) * _PAGE_BYTES)


def memory() -> dict[str, int]:
    """The host's memory in bytes, by the names that ``/proc/meminfo`` has. Raises OSError if it cannot be read."""
    with open("/proc/meminfo") as lines:
        rows = [line.split() for line in lines]
    return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows if row[-1] == "kB"}
