"""Writes the black box of this rank (`hvdlite.blackbox.format`), if an agent holds one for it.

The thread that completes a batch writes its record, by one `struct.pack_into`. Once a second a thread writes the main
thread's stack, what is in flight, and the quantities. It is the only thread of hvdlite that wakes by the clock, and
exists only with a black box. It also answers the agent's questions for stacks (`hvdlite.observe.stacks`).
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from hvdlite.blackbox.calls import calls_of, without_ours
from hvdlite.blackbox.format import (
    FINDING,
    FINDING_BYTES,
    FINDINGS,
    FINDINGS_AT,
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
    STACKS_AT,
    Finding,
    findings,
    quantities,
    quantity,
    write_quantities,
    write_text,
)
from hvdlite.blackbox.format import Phase as Phase
from hvdlite.engine.observer import Observer, State
from hvdlite.metrics.table import BATCHES
from hvdlite.negotiation.delays.arrival import NO_ARRIVAL, UNKNOWN, Arrival
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.replica import Work
from hvdlite.observe.account import Account
from hvdlite.observe.interpreter import Interpreter
from hvdlite.observe.lingering import Lingering, at_end_of_program, awaited
from hvdlite.observe.stacks import Stacks, threads

_NOTE_S: Final = 1.0
_SLEEPS: Final = 4  # in that time, so that waits for the GIL show within a few seconds
_THREAD_S: Final = 1.0  # for the thread to begin, or to end
_MOST_FRAMES: Final = 8
_MOST_NAMES: Final = 4
_EVERYONE: Final = 0  # the group of all ranks
_MOST_IN_FLIGHT: Final = 32
_MOST_CHARACTERS: Final = 128
_MOST_OF_FOLDER: Final = NOTE_BYTES // 16  # a character takes up to 12 bytes of JSON
_OURS: Final = f"{Path(__file__).parents[1]}{os.sep}"


class Recorder:
    """Records the batches of the groups that it watches, until it is closed; without memory, nothing."""

    def __init__(self, memory: Mapped | None, rank: int, size: int, patience_s: float = 0.0) -> None:
        """Takes over ``memory``, of NBYTES. A wait of ``patience_s`` for this rank is reported."""
        self._patience_s = patience_s
        self._place = (rank, size)
        self._indices = itertools.count(1)
        self._notes = itertools.count(1)
        self._main = threading.main_thread().ident
        self._memory: Mapped | None = memory
        self.account = Account(time.monotonic(), {} if memory is None else quantities(memory))
        if memory is not None:
            if memory[: len(MARK)] == MARK:  # an earlier session's, whose records may have larger numbers
                memory[NOTES_AT:STACKS_AT] = bytes(STACKS_AT - NOTES_AT)
            earlier = (number for number, _ in findings(memory, 0))  # the agent counts them over all sessions
            self._findings = itertools.count(1 + max(earlier, default=0))
            self.enter(Phase.JOINING)
            self._interpreter = Interpreter()
            self._lingering = Lingering(patience_s)
            self._is_ready, self._is_closed = threading.Event(), threading.Event()
            self._thread = threading.Thread(target=self._serve, args=(memory,), name="hvdlite-recorder", daemon=True)
            self._thread.start()

    def enter(self, phase: Phase) -> None:
        """Records that this rank is in ``phase`` now."""
        if phase is Phase.INSIDE:
            self.account.join(time.monotonic())
            if self._memory is not None:  # now, because the program may hold the GIL from its next call on
                self._measure(self._memory)
                self._is_ready.wait(_THREAD_S)
        if self._memory is not None:
            HEAD.pack_into(self._memory, 0, MARK, os.getpid(), *self._place, phase)

    def watch(self, number: int, observer: Observer, ranks: Sequence[int]) -> None:
        """Records the batches of a group, ``ranks`` of the process set of this number, from now on."""
        self.account.watch(number, observer, ranks, time.monotonic())
        if self._memory is not None:
            observer.subscribe(partial(self._record, number), partial(self._record_call, number))
            observer.on_finding = self._publish

    @property
    def is_read(self) -> bool:
        """True if an agent reads what is recorded."""
        return self._memory is not None

    def stop(self) -> None:
        """Ends the thread, and writes the quantities."""
        if self._memory is not None:
            self._is_closed.set()
            self._thread.join(_THREAD_S)
            if not self._thread.is_alive():
                self._measure(self._memory)
                self._interpreter.close()

    def close(self) -> None:
        """Ends the thread, and records that this rank has left."""
        self.stop()
        self.enter(Phase.OUTSIDE)
        memory, self._memory = self._memory, None
        if memory is not None:
            with suppress(OSError):  # the program has closed the descriptor
                inode = os.fstat(memory.descriptor).st_ino
                at_end_of_program(partial(self._go_on, f"{memory.descriptor}:{inode}"))
            memory.close()

    def _go_on(self, place: str) -> None:
        """Answers the agent again if the program has ended after `close`, and Python waits for its threads."""
        if awaited() and (memory := memory_at(place)) is not None:
            self._memory = memory
            self._is_closed.clear()
            threading.Thread(target=self._serve_end, args=(memory,), name="hvdlite-recorder", daemon=True).start()

    def _serve_end(self, memory: Mapped) -> None:
        with Stacks(memory, memory.descriptor, self._patience_s) as stacks:
            while not self._is_closed.wait(_NOTE_S / _SLEEPS):
                stacks.answer()
                self._look_for_end(memory)

    def _record(self, group: int, work: Work) -> None:
        times = work.sent_at, work.agreed_at, work.moved_at, work.done_at, work.waited_s
        self._write(group, work.number, work.tensors, work.nbytes, times, work.arrival, work.entries[0])

    def _record_call(
        self,
        group: int,
        number: int,
        entries: Sequence[Entry],
        begun_at: float,
        done_at: float,
        arrival: Arrival | None,
    ) -> None:
        times = begun_at, done_at, done_at, done_at, done_at - begun_at
        nbytes = entries[0].nbytes if len(entries) == 1 else sum([entry.nbytes for entry in entries])
        self._write(group, number, len(entries), nbytes, times, arrival, entries[0])

    def _write(
        self,
        group: int,
        number: int,
        tensors: int,
        nbytes: int,
        times: tuple[float, float, float, float, float],
        arrival: Arrival | None,
        first: Entry,
    ) -> None:
        memory = self._memory
        if memory is None:  # closed, although this batch had not ended
            return
        index = next(self._indices)
        _, _, last_rank, _, late_s = arrival or NO_ARRIVAL
        RECORD.pack_into(
            memory,
            RECORDS_AT + index % RECORDS * RECORD.size,
            index,
            group,
            number,
            tensors,
            nbytes,
            *times,
            last_rank,
            late_s,
            first.request.kind,
            _encoded(first.name),
            index,
        )

    def _publish(self, finding: Finding) -> bool:
        """Writes ``finding`` for the agent. False if it is too long, or this recorder is closed."""
        memory, text = self._memory, json.dumps(finding).encode()
        if memory is None or len(text) > FINDING_BYTES:
            return False
        number = next(self._findings)
        write_text(memory, FINDING, FINDINGS_AT + number % FINDINGS * FINDING.size, number, text)
        return True

    def _serve(self, memory: Mapped) -> None:
        with Stacks(memory, memory.descriptor, self._patience_s) as stacks:
            self._is_ready.set()
            for sleeps in itertools.count(1):
                if self._interpreter.sleep(_NOTE_S / _SLEEPS, self._is_closed):
                    break
                stacks.answer()
                if sleeps % _SLEEPS == 0:
                    self._note(memory)
                    self._measure(memory)
                    self._look_for_end(memory)

    def _look_for_end(self, memory: mmap.mmap) -> None:
        now = time.monotonic()
        is_waiting = any(group.observer.state(now, 0).waiting_s > 0 for group in self.account.groups.values())
        if (found := self._lingering.look(now, quantity(memory, BATCHES), is_waiting)) is not None:
            self._publish(found)

    def _measure(self, memory: mmap.mmap) -> None:
        write_quantities(memory, self.account.quantities(time.monotonic(), self._interpreter.quantities))

    def _note(self, memory: mmap.mmap) -> None:
        number, now, watched = next(self._notes), time.monotonic(), self.account.groups
        states = {group: each.observer.state(now, _MOST_IN_FLIGHT) for group, each in watched.items()}
        if _EVERYONE in states and states[_EVERYONE].has_ended:
            return  # the note before has what was in flight
        note = {
            "in_flight": sum(state.in_flight for state in states.values()),
            "names": (names := [_cut(name) for state in states.values() for _, name in state.first][:_MOST_NAMES]),
            "waiting_s": max((state.waiting_s for state in states.values()), default=0.0),
            "unagreed_s": max((state.unagreed_s for state in states.values()), default=0.0),
            "missing": states[_EVERYONE].missing if _EVERYONE in states else UNKNOWN,
            "stack": (stack := _stack(sys._current_frames().get(self._main or 0))),
            "groups": (groups := {group: _listed(group, watched[group].ranks, states[group]) for group in states}),
            "threads": (alive := threads()),
            "ours": _OURS if len(_OURS) <= _MOST_OF_FOLDER else "",
        }
        text = json.dumps(note).encode()
        while len(text) > NOTE_BYTES:  # of long names and paths; without all these lists it fits
            _shorten(groups, stack, names, alive)
            text = json.dumps(note).encode()
        write_text(memory, NOTE, NOTES_AT + number % 2 * NOTE.size, number, text, now)


@lru_cache(maxsize=1024)
def _encoded(name: str) -> bytes:
    return name.encode(errors="replace")[:NAME_BYTES]


_Listed = tuple[Sequence[int], int, list[tuple[int, str]]]
"""The ranks of a group, how many tensors are in flight there, and the kinds and names of the first of them."""


def _listed(group: int, ranks: Sequence[int], state: State) -> _Listed:
    first = [(int(kind), _cut(name)) for kind, name in state.first]
    return () if group == _EVERYONE else tuple(ranks), state.in_flight, first


def _cut(name: str) -> str:
    return name[:_MOST_CHARACTERS]


def _shorten(groups: dict[int, _Listed], *others: list[Any]) -> None:
    """Leaves out the least important: names of groups, groups, then items of the first non-empty one of ``others``."""
    _, _, longest = max(groups.values(), key=lambda listed: len(listed[2]), default=((), 0, []))
    if longest:
        del longest[len(longest) // 2 :]
    elif groups:
        groups.popitem()
    else:
        next(filter(None, others)).pop()


def _stack(frame: FrameType | None) -> list[str]:
    """The innermost calls of a thread, without calls of hvdlite to itself."""
    calls = itertools.islice(without_ours(calls_of(frame), _OURS), _MOST_FRAMES)
    return [f"{function}, {file}:{line}" for file, line, function in calls]


class Mapped(mmap.mmap):
    """The memory of a black box, and the descriptor from which it is mapped."""

    descriptor = -1


def memory_at(place: str) -> Mapped | None:
    """Maps the memory at ``place``, the descriptor and inode in `Settings.blackbox`; None if it is gone."""
    descriptor, _, inode = place.partition(":")
    with suppress(OSError, ValueError):
        found = os.fstat(int(descriptor))
        if found.st_ino == int(inode) and found.st_size == NBYTES:
            memory = Mapped(int(descriptor), NBYTES)
            memory.descriptor = int(descriptor)
            return memory
    return None
