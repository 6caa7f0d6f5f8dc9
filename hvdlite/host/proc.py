"""Facts about this host and about any process on it, of any user, from ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    """What a ``stat`` file reports about a process or a thread.

    ``state`` is ``T`` if a signal stopped it, and ``t`` if a debugger holds it. ``parent``, ``group`` and ``session``
    are process ids. The processor times and page faults are sums. ``started_s`` is on CLOCK_BOOTTIME, and ``processor``
    where it ran last.
    """

    name: str
    state: str
    parent: int
    group: int
    session: int
    minor_faults: int
    major_faults: int
    user_s: float
    system_s: float
    started_s: float
    processor: int

    @property
    def cpu_s(self) -> float:
        """The processor time, of all threads if this is a process."""
        return self.user_s + self.system_s


def parse_stat(text: str) -> Stat | None:
    """Reads the ``text`` of a ``stat`` file; None if it is empty, because the process has ended."""
    head, _, rest = text.rpartition(")")  # the name may hold anything
    fields = rest.split()
    if not fields:
        return None
    return Stat(
        name=head.partition("(")[2],
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        minor_faults=int(fields[7]),
        major_faults=int(fields[9]),
        user_s=int(fields[11]) * _TICK_S,
        system_s=int(fields[12]) * _TICK_S,
        started_s=int(fields[19]) * _TICK_S,
        processor=int(fields[36]),
    )


def stat_of(pid: int) -> Stat:
    """What the kernel reports about ``pid``. Raises OSError if it has ended."""
    with open(f"/proc/{pid}/stat", errors="replace") as file:
        stat = parse_stat(file.read())
    if stat is None:
        raise ProcessLookupError(f"process {pid} has ended")
    return stat


def status_of(pid: int, tid: int | None = None) -> dict[str, str]:
    """The fields of the ``status`` file of ``pid``, or of its thread ``tid``; none if it has ended."""
    task = "" if tid is None else f"/task/{tid}"
    with suppress(OSError), open(f"/proc/{pid}{task}/status", errors="replace") as file:
        fields = [line.partition(":") for line in file]
        return {name: value.strip() for name, _, value in fields}
    return {}


def has_signal(status: Mapping[str, str], mask: str, signum: int) -> bool:
    """True if ``signum`` is in a mask of ``status``, such as ``SigCgt``."""
    return bool(int(status.get(mask, "0"), 16) >> (signum - 1) & 1)


def memory_of(pid: int) -> int:
    """The bytes that ``pid`` has mapped and touched. Raises OSError if it has ended."""
    with open(f"/proc/{pid}/statm", "rb") as file:
        pages = file.read().split()
    if len(pages) < 2:
        raise ProcessLookupError(f"process {pid} has ended")
    return int(pages[1]) * _PAGE_BYTES


def memory() -> dict[str, int]:
    """The host's memory in bytes, by the names that ``/proc/meminfo`` has. Raises OSError if it cannot be read."""
    with open("/proc/meminfo") as lines:
        rows = [line.split() for line in lines]
    return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows if row[-1] == "kB"}
