"""Answers hvdrun's question for the stacks of some ranks: for each, what its process does, and where its threads are.

An answer has for each rank ``pid``, ``command``, ``state`` and ``tracer`` of its process, ``reads_stdin``, ``way`` in
which its stacks came ("asked", "signal" or empty), whether it ``is_starved``, and so did not answer by itself, ``why``
there are none, the folder ``ours`` of hvdlite, ``children`` of a process that is no rank yet, and ``threads``:
``name``, ``is_main``, ``state``, ``syscall``, ``wchan`` and ``calls``, of which each has a file, a line and a function.
The kernel is asked before and after the stacks are taken. A thread whose state differs has ``moved``, and one that ran
meanwhile was ``awake``, so its calls may be of another moment. hvdlite's own calls are left out below what the program
called.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from hvdlite.blackbox.calls import without_ours
from hvdlite.blackbox.format import Phase
from hvdlite.host.proc import descendants_of
from hvdlite.scope import Scope

from ..ranks.workers import Worker
from .proc import Process, Thread, process_of
from .stacks import Box, Stack

if TYPE_CHECKING:
    from ...stream.questions import Stacks

_ANSWER_S: Final = 3.0  # many of the recorder's periods
_STALE_S: Final = 3.0
_PAUSE_S: Final = 0.02
_MOST_CALLS: Final = 30
_MOST_THREADS: Final = 64
_MOST_NATIVE: Final = 8
_MOST_CHILDREN: Final = 16
_CANNOT_BE_ASKED: Final = "cannot be asked: it has ended, closed its files, or is in another PID namespace"
_STOPPED: Final = {"T": "it is stopped", "t": "the program that traces it has stopped it"}  # by the state of a process
_OURS: Final = "hvdlite-"  # the names of hvdlite's threads


def looking(workers: Iterable[Worker], question: Stacks) -> Callable[[], dict[str, Any]]:
    """Returns what answers a question for stacks.

    What it needs of ``workers`` is taken now, because they may end before the answer is there.
    """
    ranks, shows_all = frozenset(question.ranks), question.all
    looks = [
        _Look(worker.rank, worker.process.pid, None if worker.blackbox is None else Box(os.dup(worker.blackbox)))
        for worker in workers
        if worker.rank in ranks and worker.process.returncode is None
    ]
    return lambda: _answer(looks, shows_all)


def _answer(looks: Sequence[_Look], shows_all: bool) -> dict[str, Any]:
    try:
        for look in looks:
            look.begin()
        answering = Scope.of(_ANSWER_S)
        while any(look.waits() for look in looks) and not answering.is_over:
            threading.Event().wait(_PAUSE_S)
        return {str(look.rank): look.finish(shows_all) for look in looks}
    finally:
        for look in looks:
            look.close()


class _Look:
    """A look at one rank. ``worker`` is the process that was started for it, which may be a shell."""

    def __init__(self, rank: int, worker: int, box: Box | None) -> None:
        self.rank = rank
        self._worker, self._box = worker, box
        self._process: Process | None = None
        self._after: Process | None = None  # as it was when the stacks had come
        self._why = ""
        self._is_asked = self._is_starved = False
        self._stacks: list[Stack] | None = None

    def begin(self) -> None:
        """Looks at the process, and asks it if it can answer."""
        pid = self._box.verified_pid() if self._box is not None else None
        self._process = process_of(pid or self._worker)
        read = self._box.read if self._box is not None else None
        if self._process is None:
            self._why = "it has ended"
        elif read is None:
            self._why = "it has not called hvd.init()"
        elif pid is None:
            self._why = f"process {read.pid}, which called hvd.init(), {_CANNOT_BE_ASKED}"
        elif read.phase is Phase.OUTSIDE and self._box is not None and self._box.awake_at == 0:
            self._why = "it has left the job by hvd.shutdown()"
        elif self._process.state in _STOPPED:
            self._why = _STOPPED[self._process.state]
        elif self._box is not None and not 0 < self._box.awake_at < time.monotonic() - _STALE_S:
            self._box.ask()
            self._is_asked = True

    def waits(self) -> bool:
        """True if the answer may still come."""
        if self._is_asked and self._stacks is None and self._box is not None:
            self._stacks = self._box.answer()
            if self._stacks is not None and self._process is not None:
                self._after = process_of(self._process.pid)
            return self._stacks is None
        return False

    def finish(self, shows_all: bool) -> dict[str, Any]:
        """The fields of the answer for this rank."""
        way = "asked" if self._stacks is not None else ""
        if self._stacks is None and not self._why and self._box is not None:
            pid = self._process.pid if self._process is not None else self._worker
            self._process = process_of(pid) or self._process
            if self._process is not None and self._process.state in _STOPPED:  # since `begin`
                self._why = _STOPPED[self._process.state]
            else:
                try:
                    self._stacks, self._is_starved = self._box.dump()
                    way, self._after = "signal", process_of(pid)
                except OSError as error:
                    self._why = f"its Python does not run, and {error.strerror or error}"
        process = self._process
        if process is None:
            return {"pid": self._worker, "why": self._why}
        ours = "" if self._box is None else self._box.ours
        answer = {
            "pid": process.pid,
            "command": process.command,
            "state": process.state,
            "tracer": process.tracer,
            "reads_stdin": process.reads_stdin,
            "way": way,
            "is_starved": self._is_starved,
            "why": self._why,
            "ours": ours,
            "threads": _threads(process, self._after, self._stacks, "" if shows_all else ours),
        }
        if self._box is None or self._box.read is None:
            answer["children"] = [_of_process(child) for child in _children(self._worker)]
        return answer

    def close(self) -> None:
        if self._box is not None:
            self._box.close()


def _threads(before: Process, after: Process | None, stacks: list[Stack] | None, ours: str) -> list[dict[str, Any]]:
    """The main thread, other threads of Python, and threads without Python that do something.

    The process was ``before`` the stacks were taken and ``after`` that like this, None if there are none or it ended.
    Without the threads and calls of hvdlite if ``ours``, its folder, is not empty.
    """
    shows_all = not ours
    process = after or before
    earlier, by_tid = ({thread.tid: thread for thread in each.threads} for each in (before, process))
    found = []
    for stack in sorted(stacks or (), key=lambda stack: stack.tid != process.pid):
        if shows_all or not _is_ours(stack, ours):
            calls = stack.calls if shows_all else list(without_ours(_own(stack.calls), ours))
            thread = by_tid.get(stack.tid)
            fields = _of_thread(thread, stack.name, stack.tid == process.pid, calls[:_MOST_CALLS])
            found.append({**fields, **_changes(earlier.get(stack.tid), thread)})
    known = {stack.tid for stack in stacks or ()}
    native = [thread for thread in process.threads if thread.tid not in known]
    if stacks is not None:
        is_complete = all(stack.tid for stack in stacks)  # else it may be one of Python's
        native = [thread for thread in native if thread.state in "RD" and is_complete]
    native = [thread for thread in native if shows_all or not thread.name.startswith(_OURS)]
    found += [_of_thread(thread, thread.name, thread.tid == process.pid, ()) for thread in native[:_MOST_NATIVE]]
    return found[:_MOST_THREADS]


def _own(calls: Sequence[tuple[str, int, str]]) -> Sequence[tuple[str, int, str]]:
    """``calls`` without those with which every thread of `threading` begins."""
    end = len(calls)
    while end > 1 and calls[end - 1][0].endswith("/threading.py"):
        end -= 1
    return calls[:end]


def _is_ours(stack: Stack, ours: str) -> bool:
    """True if hvdlite has started the thread, whose name may not be known."""
    calls = _own(stack.calls)
    return stack.name.startswith(_OURS) or (not stack.name and bool(calls) and calls[-1][0].startswith(ours))


def _of_thread(
    thread: Thread | None, name: str, is_main: bool, calls: Collection[tuple[str, int, str]]
) -> dict[str, Any]:
    return {
        "name": name,
        "is_main": is_main,
        "state": thread.state if thread else "",
        "syscall": thread.syscall if thread else "",
        "wchan": thread.wchan if thread else "",
        "calls": list(calls),
    }


def _changes(before: Thread | None, after: Thread | None) -> dict[str, bool]:
    """What became of a thread while its stack was taken."""
    if before is None or after is None:
        return {"moved": False, "awake": False}
    return {"moved": before.place != after.place, "awake": before.switches != after.switches}


def _of_process(process: Process) -> dict[str, Any]:
    main = [_of_thread(thread, thread.name, True, ()) for thread in process.threads[:1]]
    return {"pid": process.pid, "command": process.command, "tracer": process.tracer, "threads": main}


def _children(pid: int) -> list[Process]:
    """The processes below ``pid``."""
    found = (process_of(each) for each in descendants_of(pid))
    return list(islice((process for process in found if process is not None), _MOST_CHILDREN))
