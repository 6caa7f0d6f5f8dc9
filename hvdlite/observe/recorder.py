"""Writes the black box of this rank (`hvdlite.observe.blackbox`), if an agent holds one for it.

Each batch is one record, written where it ends, by one `struct.pack_into`. A thread notes once a second what the main
thread does: its stack, and what is in flight. It is the only thread of hvdlite that wakes by the clock, and it exists
only where there is a black box.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from hvdlite.engine.observer import Observer
from hvdlite.negotiation.delays.arrival import NOT_KNOWN
from hvdlite.negotiation.replica import Work
from hvdlite.observe.blackbox import (
    HEAD,
    MARK,
    NAME_BYTES,
    NBYTES,
    NOTE,
    NOTE_BYTES,
    NOTES_AT,
    RECORD,
    RECORDS,
    RECORDS_AT,
)
from hvdlite.observe.blackbox import Phase as Phase

_NOTE_S: Final = 1.0
_STOP_S: Final = 1.0
_MOST_FRAMES: Final = 8
_MOST_NAMES: Final = 4
_OURS: Final = f"{Path(__file__).parents[1]}{os.sep}"


class Recorder:
    """Records the batches of the groups that it is told to `watch`, until it is closed; without memory, nothing."""

    def __init__(self, memory: mmap.mmap | None, rank: int, size: int) -> None:
        """Takes over ``memory``, of NBYTES."""
        self._place = (rank, size)
        self._indices = itertools.count(1)
        self._notes = itertools.count(1)
        self._observers: dict[int, Observer] = {}
        self._main = threading.main_thread().ident
        self._memory = memory
        if memory is not None:
            if memory[: len(MARK)] == MARK:  # an earlier session's, whose records may have larger numbers
                memory[NOTES_AT:] = bytes(NBYTES - NOTES_AT)
            self.enter(Phase.JOINING)
            self._is_closed = threading.Event()
            self._thread = threading.Thread(target=self._serve, args=(memory,), name="hvdlite-recorder", daemon=True)
            self._thread.start()

    def enter(self, phase: Phase) -> None:
        """Records that this rank is in ``phase`` now."""
        if self._memory is not None:
            HEAD.pack_into(self._memory, 0, MARK, os.getpid(), *self._place, phase)

    def watch(self, number: int, observer: Observer) -> None:
        """Records the batches of a group, that of the process set of this number, from now on."""
        if self._memory is not None:
            self._observers = {**self._observers, number: observer}
            observer.subscribe(partial(self._record, number))

    def stop(self) -> None:
        """Ends the thread."""
        if self._memory is not None:
            self._is_closed.set()
            self._thread.join(_STOP_S)

    def close(self) -> None:
        """Ends the thread, and records that this rank has left."""
        self.stop()
        self.enter(Phase.OUTSIDE)
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()

    def _record(self, group: int, work: Work) -> None:
        memory = self._memory
        if memory is None:  # closed, although this batch had not ended
            return
        index = next(self._indices)
        _, _, last_rank, _, late_s = work.arrival or NOT_KNOWN
        RECORD.pack_into(
            memory,
            RECORDS_AT + index % RECORDS * RECORD.size,
            index,
            group,
            work.number,
            work.tensors,
            work.nbytes,
            work.told_at,
            work.agreed_at,
            work.moved_at,
            work.done_at,
            work.waited_s,
            last_rank,
            late_s,
            work.entries[0].name.encode()[:NAME_BYTES],
            index,
        )

    def _serve(self, memory: mmap.mmap) -> None:
        while not self._is_closed.wait(_NOTE_S):
            self._note(memory)

    def _note(self, memory: mmap.mmap) -> None:
        number, now = next(self._notes), time.monotonic()
        in_flight, names, waiting_s = 0, list[str](), 0.0
        for observer in self._observers.values():
            state = observer.state(now)
            in_flight += state.in_flight
            names += state.names
            waiting_s = max(waiting_s, state.waiting_s)
        stack = list(_stack(sys._current_frames().get(self._main or 0)))
        note = {"in_flight": in_flight, "names": names[:_MOST_NAMES], "waiting_s": waiting_s, "stack": stack}
        text = json.dumps(note).encode()
        while len(text) > NOTE_BYTES and stack:  # of long paths
            stack.pop()
            text = json.dumps(note).encode()
        at = NOTES_AT + number % 2 * NOTE.size
        NOTE.pack_into(memory, at, number, now, len(text), text, number)


def _stack(frame: FrameType | None) -> Iterator[str]:
    """The innermost calls of a thread; of hvdlite's own, only what the user called."""
    shown = 0
    while frame is not None and shown < _MOST_FRAMES:
        code, above = frame.f_code, frame.f_back
        is_inside = above is not None and above.f_code.co_filename.startswith(_OURS)
        if not (code.co_filename.startswith(_OURS) and is_inside):
            yield f"{code.co_qualname}, {code.co_filename}:{frame.f_lineno}"
            shown += 1
        frame = above


def memory_at(place: str) -> mmap.mmap | None:
    """Maps the memory at ``place``, the descriptor and inode of `Settings.blackbox`; None if it is not there."""
    descriptor, _, inode = place.partition(":")
    with suppress(OSError, ValueError):
        found = os.fstat(int(descriptor))
        if found.st_ino == int(inode) and found.st_size == NBYTES:
            return mmap.mmap(int(descriptor), NBYTES)
    return None
