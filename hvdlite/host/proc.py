"""Facts about this host and about any process on it, of any user.

psutil is imported when it is first needed, because that takes 13 ms and 1.2 MB, which a starting agent and a rank
should not pay. This module reads ``/proc`` itself for what psutil lacks: the group and session of a process, its start
on a clock that cannot be set, signal masks and threads. State and parent come with these, in half of psutil's time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """The contents of a ``stat`` file of a process or a thread.

    ``state`` is ``T`` if a signal stopped it, and ``t`` if a debugger did. ``parent``, ``group`` and ``session`` are
    process ids. ``started_s`` is on CLOCK_BOOTTIME, and ``processor`` is where it ran last.
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


def pids() -> list[int]:
    """All processes of this machine, zombies included; none where there is no /proc."""
    with suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []


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
    with _psutil() as psutil:
        return int(psutil.Process(pid).memory_info().rss)


def command_of(pid: int) -> str:
    """The command line of ``pid``; empty if it has none, has ended or may not be read."""
    with suppress(OSError), _psutil() as psutil:
        return " ".join(psutil.Process(pid).cmdline()).strip()
    return ""


def is_below(pid: int, ancestor: int) -> bool:
    """True if ``pid`` is a descendant of ``ancestor``."""
    with suppress(OSError), _psutil() as psutil:
        return any(parent.pid == ancestor for parent in psutil.Process(pid).parents())
    return False


def descendants_of(pid: int) -> list[int]:
    """The processes below ``pid``, in the order of their ids; none if it has ended."""
    with suppress(OSError), _psutil() as psutil:
        return sorted(child.pid for child in psutil.Process(pid).children(recursive=True))
    return []


class Memory(NamedTuple):
    """The host's memory in bytes; ``available`` is what programs can take without swapping."""

    total: int
    available: int
    used_swap: int


def memory() -> Memory:
    """The host's memory. Raises OSError if it cannot be read."""
    with _psutil() as psutil:
        found = psutil.virtual_memory()
        return Memory(found.total, found.available, psutil.swap_memory().used)


@contextmanager
def _psutil() -> Iterator[Any]:
    """Yields psutil; its errors become the kernel's OSErrors."""
    import psutil

    try:
        yield psutil
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError(f"process {error.pid} has ended") from None
    except psutil.AccessDenied as error:
        raise PermissionError(f"process {error.pid} may not be read") from None
