"""Asks a rank for the Python stacks of its threads; see `hvdlite.observe.stacks` for the two ways.

Before a signal is sent, it is made sure that it reaches the rank's own recorder: the process in the black box must be a
descendant of the agent and have the memory open, the thread must be one of its own, and the signal must be caught.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from hvdlite.blackbox import format as blackbox
from hvdlite.blackbox.format import ASKED_AT, AWAKE_AT, DUMP_AT, NBYTES, NUMBER, OFFER, OFFER_AT
from hvdlite.host.proc import has_signal, is_below, status_of
from hvdlite.scope import Scope

from .syscalls import NUMBERS

_NUMBER: Final = 8  # bytes
_THREAD: Final = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)\b.*:")
_CALL: Final = re.compile(r'  File "(.*)", line ([0-9]{1,9}) in (.*)')
_DUMP_S: Final = 2.0
_PAUSE_S: Final = 0.005
_SAMPLES: Final = 40
_dumping: Final = threading.Lock()  # the descriptor's position, which the rank shares, is one question's at a time


class Stack(NamedTuple):
    """A thread of Python: what identifies it, the kernel's number for it, or 0, and its calls, the innermost first."""

    ident: int
    tid: int
    name: str
    calls: list[tuple[str, int, str]]


class Box:
    """The black box of a rank, from the agent's side. ``descriptor`` belongs to it from now on."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._memory = mmap.mmap(descriptor, NBYTES, prot=mmap.PROT_READ)
        self._asked = 0
        self.read = blackbox.read(descriptor)
        self.ours = str(Path(blackbox.__file__).parents[1])
        """The folder of hvdlite."""
        if self.read is not None and isinstance(ours := self.read.note.get("ours"), str) and ours:
            self.ours = ours

    def close(self) -> None:
        self._memory.close()
        os.close(self._descriptor)

    def ask(self) -> None:
        """Asks the rank, which looks several times a second."""
        before = int.from_bytes(self._memory[ASKED_AT : ASKED_AT + _NUMBER], "little")
        self._asked = (before + 1) % (1 << 8 * _NUMBER)  # the rank may write there too
        os.pwrite(self._descriptor, self._asked.to_bytes(_NUMBER, "little"), ASKED_AT)

    @property
    def awake_at(self) -> float:
        """When the rank's recorder was last awake, on the monotonic clock; 0 if it was not yet."""
        at = float(NUMBER.unpack_from(self._memory, AWAKE_AT)[0])
        return at if math.isfinite(at) else 0.0

    def answer(self) -> list[Stack] | None:
        """What the rank answered, if it has."""
        answer = blackbox.stacks(self._memory, self._asked)
        return None if answer is None else _parsed(answer)

    def verified_pid(self) -> int | None:
        """The process that wrote this box, if it is there."""
        if self.read is None:
            return None
        pid, (_, _, number, *_) = self.read.pid, OFFER.unpack_from(self._memory, OFFER_AT)
        with suppress(OSError):
            theirs, ours = os.stat(f"/proc/{pid}/fd/{number}"), os.fstat(self._descriptor)
            is_same = (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)
            return pid if is_same and is_below(pid, os.getpid()) else None
        return None

    def dump(self) -> tuple[list[Stack], bool]:
        """Has the rank dump its stacks without its Python. Raises OSError that says why it does not.

        Also returns whether the rank is starved: it was never seen to wait for the GIL, but only for a processor or for
        memory.
        """
        pid, (signum, tid, _, main, _) = self.verified_pid(), OFFER.unpack_from(self._memory, OFFER_AT)
        if self.awake_at == 0:
            raise OSError("hvdlite has ended in it")
        if signum <= 0:
            raise OSError("its program uses the signal that would ask for them")
        if pid is None or not has_signal(status := status_of(pid, tid), "SigCgt", signum):
            raise OSError("its process is not what it was")
        if status.get("TracerPid", "0") != "0" or status.get("State", "T")[0] in "Tt":
            raise OSError("it does not run freely")
        is_starved = _is_starved(pid, tid)
        with _dumping:
            os.lseek(self._descriptor, DUMP_AT, os.SEEK_SET)
            _signal_thread(pid, tid, signum)
            self._wait(pid, tid, signum)
            length = os.lseek(self._descriptor, 0, os.SEEK_CUR) - DUMP_AT
        text = self._memory[DUMP_AT : DUMP_AT + max(0, length)].decode(errors="replace")
        note = self.read.note.get("threads") if self.read is not None else None
        return _parsed_dump(text, note, {main: (pid, "MainThread")}), is_starved

    def _wait(self, pid: int, tid: int, signum: int) -> None:
        """Waits until the handler has returned: the kernel blocks the signal meanwhile.

        Just before it does, the signal is neither pending nor blocked, but then nothing has been written.
        """
        scope = Scope.of(_DUMP_S)
        while True:
            has_begun = os.lseek(self._descriptor, 0, os.SEEK_CUR) > DUMP_AT
            status = status_of(pid, tid)
            if has_begun and not has_signal(status, "SigPnd", signum) and not has_signal(status, "SigBlk", signum):
                return
            if scope.is_over:
                raise OSError(f"it did not take the signal within {_DUMP_S:g} s")
            threading.Event().wait(_PAUSE_S)


def _is_starved(pid: int, tid: int) -> bool:
    """True if a thread that should be awake never sleeps. One that waits for the GIL does, but for moments."""
    for _ in range(_SAMPLES):
        if status_of(pid, tid).get("State", "S")[0] == "S":
            return False
        threading.Event().wait(_PAUSE_S)
    return True


def _signal_thread(pid: int, tid: int, signum: int) -> None:
    if "tgkill" not in NUMBERS:
        raise OSError(f"a single thread takes no signal on {os.uname().machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(NUMBERS["tgkill"]), pid, tid, signum) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _parsed(answer: Any) -> list[Stack] | None:
    """The stacks of an answer, which the rank may have written as it likes."""
    with suppress(KeyError, OverflowError, TypeError, ValueError):  # Infinity overflows
        return [
            Stack(int(ident), int(tid), str(name), [(str(file), int(line), str(call)) for file, line, call in calls])
            for ident, tid, name, calls in answer["threads"]
        ]
    return None


def _parsed_dump(text: str, note: Any, names: dict[int, tuple[int, str]]) -> list[Stack]:
    """The stacks of a dump of `faulthandler`, with what is known of some threads, and of those of a note."""
    with suppress(OverflowError, TypeError, ValueError):
        names |= {int(ident): (int(tid), str(name)) for ident, tid, name in note or ()}
    stacks: list[Stack] = []
    for line in text.splitlines():
        if match := _THREAD.match(line):
            ident = int(match[1], 16)
            stacks.append(Stack(ident, *names.get(ident, (0, "")), []))
        elif stacks and (match := _CALL.fullmatch(line)):
            stacks[-1].calls.append((match[1], int(match[2]), match[3]))
    return stacks
