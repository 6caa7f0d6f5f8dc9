"""What the kernel says of a process and its threads, for the user who runs it; what may not be read is left out."""

from __future__ import annotations

import os
import stat
import struct
from contextlib import suppress
from typing import Final, NamedTuple

from hvdlite.host.proc import command_of, status_of

from .syscalls import NAMES, NUMBERS

_MOST_THREADS: Final = 512
_COMMAND: Final = 200  # characters
_POLLFD: Final = struct.Struct("=ihh")
_READS: Final = frozenset(NUMBERS[name] for name in ("read", "readv") if name in NUMBERS)
_SELECTS: Final = frozenset(NUMBERS[name] for name in ("select", "pselect6") if name in NUMBERS)
_POLLS: Final = frozenset(NUMBERS[name] for name in ("poll", "ppoll") if name in NUMBERS)


class Thread(NamedTuple):
    """A thread: its name for the kernel, its state as in ps, and the system call and kernel function it waits in.

    It has been taken from a processor ``switches`` times, so it has slept since a look at which they were the same.
    """

    tid: int
    name: str
    state: str
    syscall: str
    wchan: str
    reads_stdin: bool
    switches: int

    @property
    def place(self) -> tuple[str, str, str]:
        """Where it is, as far as the kernel says."""
        return self.state, self.syscall, self.wchan


class Process(NamedTuple):
    """A process; ``tracer`` is the name and pid of the process that traces it, or empty."""

    pid: int
    command: str
    state: str
    tracer: str
    threads: list[Thread]

    @property
    def reads_stdin(self) -> bool:
        """True if some thread waits for input."""
        return any(thread.reads_stdin for thread in self.threads)


def process_of(pid: int) -> Process | None:
    """Returns what is known of ``pid``; None if it has ended."""
    status = status_of(pid)
    if not status:
        return None
    command = command_of(pid) or status.get("Name", "")
    tids = sorted(map(int, _listed(f"/proc/{pid}/task")))[:_MOST_THREADS]
    threads = [thread for tid in tids if (thread := _thread(pid, tid)) is not None]
    return Process(pid, command[:_COMMAND], status.get("State", "?")[:1], _tracer(status), threads)


def _thread(pid: int, tid: int) -> Thread | None:
    folder = f"/proc/{pid}/task/{tid}"
    status = status_of(pid, tid)
    if not status:
        return None
    number, *arguments = _read(f"{folder}/syscall").split() or [""]
    syscall, reads = "", False
    if number.isdigit():
        syscall = NAMES.get(int(number), f"system call {number}")
        reads = _reads_stdin(pid, int(number), [int(argument, 16) for argument in arguments[:2]])
    wchan = _read(f"{folder}/wchan").strip()
    switches = sum(int(status.get(name, "0")) for name in ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"))
    name, state = status.get("Name", ""), status.get("State", "?")[:1]
    return Thread(tid, name, state, syscall, wchan if wchan != "0" else "", reads, switches)


def _reads_stdin(pid: int, number: int, arguments: list[int]) -> bool:
    """True if a system call waits for input on descriptor 0, and for nothing else."""
    if len(arguments) < 2:
        return False
    is_that = (
        (number in _READS and arguments[0] == 0)
        or (number in _SELECTS and arguments[0] == 1)
        or (number in _POLLS and arguments[1] == 1 and _polled(pid, arguments[0]) == 0)
    )
    if is_that:
        with suppress(OSError):
            return not stat.S_ISREG(os.stat(f"/proc/{pid}/fd/0").st_mode)
    return False


def _polled(pid: int, address: int) -> int | None:
    """The first descriptor of a poll."""
    with suppress(OSError, struct.error, OverflowError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        descriptor: int = _POLLFD.unpack(os.pread(memory.fileno(), _POLLFD.size, address))[0]
        return descriptor
    return None


def _tracer(status: dict[str, str]) -> str:
    pid = status.get("TracerPid", "0")
    if not pid.isdigit() or pid == "0":
        return ""
    tracer = status_of(int(pid))  # of the thread that traces
    return f"{tracer.get('Name', 'a program')} (process {tracer.get('Tgid', pid)})"


def _read(path: str) -> str:
    with suppress(OSError), open(path, errors="replace") as file:
        return file.read()
    return ""


def _listed(path: str) -> list[str]:
    with suppress(OSError):
        return [name for name in os.listdir(path) if name.isdigit()]
    return []
