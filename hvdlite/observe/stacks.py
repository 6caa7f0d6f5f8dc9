"""The Python stacks of this rank's threads, for its agent, which asks for them while others wait for this rank.

There are two ways, and both write to the black box. The agent first asks by a number in the box: the recorder's thread
looks when it is awake anyway, several times a second, and writes all stacks, whatever the threads do that let go of the
GIL. A rank that holds the GIL in native code does not answer. Then the agent sends a signal to the recorder's thread,
whose handler, that of `faulthandler`, needs no GIL. It walks over frames without a lock, so it must not be the first
way: frames that run may change meanwhile. In a rank that does not answer they stand still.

The signal is a real-time one that nobody had taken, blocked or ignored when the session began. It is offered for as
long as its handler is ours: a program that takes it later gets it. It is directed at the recorder's thread, which
sleeps, so that no call of the program is interrupted, and hence ends with EINTR.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import signal
import sys
import threading
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

from hvdlite.blackbox.calls import Call, calls_of
from hvdlite.blackbox.format import (
    ASKED_AT,
    AWAKE_AT,
    NUMBER,
    OFFER,
    OFFER_AT,
    STACKS,
    STACKS_AT,
    STACKS_BYTES,
    write_text,
)

_MOST_THREADS: Final = 64
_MOST_FRAMES: Final = 40
_MOST_NAMED: Final = 24  # threads in a note, which is short
_NAME: Final = 24
_QUESTION: Final = ctypes.sizeof(ctypes.c_uint64)
_ACTION_BYTES: Final = 256  # of struct sigaction, and more; it begins with the handler

_FILE: Final = 300  # characters
_libc: Final = ctypes.PyDLL(None)


class Stacks:
    """Answers questions for stacks. A context of the thread that calls `answer` and takes the signal."""

    def __init__(self, memory: mmap.mmap, descriptor: int, patience_s: float) -> None:
        """The signal's handler writes to ``descriptor``, that of ``memory``. ``patience_s`` is that of `OFFER`."""
        self._memory, self._descriptor, self._patience_s = memory, descriptor, patience_s
        self._signum = 0
        self._handler = b""

    def __enter__(self) -> Stacks:
        with suppress(OSError, ValueError, RuntimeError):  # a rank without /proc, or a signal that the system keeps
            if signum := _free_signal():
                faulthandler.register(signum, file=self._descriptor, all_threads=True, chain=False)
                self._signum, self._handler = signum, _handler_of(signum)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})
        self._offer(self._signum)
        self._note_awake()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._offer(0)
        NUMBER.pack_into(self._memory, AWAKE_AT, 0.0)
        if self._is_ours():  # else to unregister would undo what the program has done
            faulthandler.unregister(self._signum)

    def answer(self) -> None:
        """Writes the stacks if the agent has asked, and takes back the offer of a signal that the program has taken."""
        self._note_awake()
        if self._signum and not self._is_ours():
            self._signum = 0
            self._offer(0)
        asked = int.from_bytes(self._memory[ASKED_AT : ASKED_AT + _QUESTION], "little")
        if asked > int.from_bytes(self._memory[STACKS_AT : STACKS_AT + _QUESTION], "little"):
            text = _all_stacks()
            write_text(self._memory, STACKS, STACKS_AT, asked, text)

    def _note_awake(self) -> None:
        NUMBER.pack_into(self._memory, AWAKE_AT, time.monotonic())

    def _is_ours(self) -> bool:
        return self._signum != 0 and _handler_of(self._signum) == self._handler

    def _offer(self, signum: int) -> None:
        main = threading.main_thread().ident or 0
        native = threading.get_native_id()
        OFFER.pack_into(self._memory, OFFER_AT, signum, native, self._descriptor, main, self._patience_s)


def threads() -> list[tuple[int, int, str]]:
    """The ident, native id and name of Python's threads, of so many as a note has room for.

    With them the agent tells the threads of a dump, which has the idents only, from each other.
    """
    alive = threading.enumerate()[:_MOST_NAMED]
    return [(each.ident or 0, each.native_id or 0, each.name[:_NAME]) for each in alive]


def _all_stacks() -> bytes:
    """JSON: of each thread, the main one first, its ident, native id, name and calls."""
    names = {each.ident: (each.native_id or 0, each.name) for each in threading.enumerate()}
    main = threading.main_thread().ident
    told: dict[str, Any] = {"threads": []}
    frames = sys._current_frames()
    length = 0
    for ident in sorted(frames, key=lambda ident: ident != main)[:_MOST_THREADS]:
        native, name = names.get(ident, (0, ""))
        entry = (ident, native, name[:_NAME], _calls(frames[ident]))
        length += len(json.dumps(entry)) + len(", ")
        if length > STACKS_BYTES - 16:
            break
        told["threads"].append(entry)
    return json.dumps(told).encode()


def _calls(frame: FrameType) -> list[Call]:
    """The innermost calls of a thread."""
    return [(file[:_FILE], line, function[:_FILE]) for file, line, function in islice(calls_of(frame), _MOST_FRAMES)]


def _free_signal() -> int:
    """A real-time signal that nobody has caught, ignored or blocked; 0 if there is none.

    From the middle on, because programs count theirs from the first or from the last.
    """
    taken = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, mask = line.partition(":")
        if name in ("SigCgt", "SigIgn", "SigBlk"):
            taken |= int(mask, 16)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    middle = (signal.SIGRTMIN + signal.SIGRTMAX) // 2
    for signum in sorted(range(signal.SIGRTMIN + 1, signal.SIGRTMAX), key=lambda signum: abs(signum - middle)):
        if not taken >> (signum - 1) & 1 and signum not in blocked:
            return signum
    return 0


def _handler_of(signum: int) -> bytes:
    """The address of the handler of ``signum``, whether Python knows it or not."""
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    _libc.sigaction(signum, None, action)
    return action.raw[: ctypes.sizeof(ctypes.c_void_p)]
