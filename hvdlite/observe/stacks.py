"""The Python stacks of this rank's threads, for its agent, which asks for them while others wait for this rank.

The agent first writes a number into the black box. The recorder's thread looks at it several times a second and writes
all stacks. A rank whose native code holds the GIL does not answer. Then the agent sends a signal to the recorder's
thread. The handler is that of `faulthandler`, which needs no GIL. It reads frames without a lock, so it is only safe
where no frame runs, as in a rank that did not answer.

The signal is a real-time signal that was not caught, blocked or ignored when the session began, and is offered as long
as the program does not install a handler for it. The recorder's thread sleeps, so the signal interrupts no call of the
program with EINTR.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from itertools import islice
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
from hvdlite.host.proc import has_signal, status_of

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
        """The signal's handler writes to ``descriptor``, that of ``memory``. ``patience_s`` is for `OFFER`."""
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
        if self._is_ours():  # else this would remove the program's handler
            faulthandler.unregister(self._signum)

    def answer(self) -> None:
        """Writes the stacks if the agent has asked. Withdraws the signal if the program has installed a handler."""
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
    """The ident, native id and name of Python's threads, as many as fit into a note.

    They name the threads of a dump, which contains idents only.
    """
    alive = threading.enumerate()[:_MOST_NAMED]
    return [(each.ident or 0, each.native_id or 0, each.name[:_NAME]) for each in alive]


def _all_stacks() -> bytes:
    """JSON: the ident, native id, name and calls of each thread, the main thread first."""
    names = {each.ident: (each.native_id or 0, each.name) for each in threading.enumerate()}
    main = threading.main_thread().ident
    answer: dict[str, Any] = {"threads": []}
    frames = sys._current_frames()
    length = 0
    for ident in sorted(frames, key=lambda ident: ident != main)[:_MOST_THREADS]:
        native, name = names.get(ident, (0, ""))
        entry = (ident, native, name[:_NAME], _calls(frames[ident]))
        length += len(json.dumps(entry)) + len(", ")
        if length > STACKS_BYTES - 16:
            break
        answer["threads"].append(entry)
    return json.dumps(answer).encode()


def _calls(frame: FrameType) -> list[Call]:
    """The innermost calls of a thread."""
    return [(file[:_FILE], line, function[:_FILE]) for file, line, function in islice(calls_of(frame), _MOST_FRAMES)]


def _free_signal() -> int:
    """A real-time signal that is not caught, ignored or blocked; 0 if there is none.

    The search begins in the middle, because programs use the first or the last ones.
    """
    status, blocked = status_of(os.getpid()), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    middle = (signal.SIGRTMIN + signal.SIGRTMAX) // 2
    for signum in sorted(range(signal.SIGRTMIN + 1, signal.SIGRTMAX), key=lambda signum: abs(signum - middle)):
        is_taken = any(has_signal(status, mask, signum) for mask in ("SigCgt", "SigIgn", "SigBlk"))
        if status and not is_taken and signum not in blocked:
            return signum
    return 0


def _handler_of(signum: int) -> bytes:
    """The address of the handler of ``signum``, whether Python knows it or not."""
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    _libc.sigaction(signum, None, action)
    return action.raw[: ctypes.sizeof(ctypes.c_void_p)]
