"""Stopped processes of a host that are ranks of a job, and the rank that reports them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hvdlite.host.ancestor import environ_of
from hvdlite.rendezvous.lookout import stopped_processes, stopped_ranks
from hvdlite.settings import Start
from tests.harness.patience import until

# A process that is in init(), which starts the process of its arguments, and says so.
IN_INIT = """
import subprocess, sys
from hvdlite.rendezvous.presence import Presence
from hvdlite.settings import Start
presence = Presence(Start.read())
child = subprocess.Popen(sys.argv[1:]) if sys.argv[1:] else None
print(child.pid if child else 0, flush=True)
sys.stdin.read()
"""
SLEEP = ["sleep", "600"]


class Processes:
    """Processes with the environment of ranks of one job, which end with the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._pipes: dict[int, subprocess.Popen[str]] = {}
        self._job = {"HVDLITE_SIZE": "4", "HVDLITE_LOCAL_SIZE": "4", "HVDLITE_JOB": f"of {os.getpid()}"}

    def environ(self, rank: int, **more: str) -> dict[str, str]:
        return {**os.environ, **self._job, "HVDLITE_RANK": str(rank), **more}

    def start_of(self, rank: int, **more: str) -> Start:
        return Start.read(self.environ(rank, **more))

    def start(self, rank: int, *command: str, **more: str) -> int:
        """Starts a process that sleeps, or ``command``, as ``rank``."""
        process = subprocess.Popen([*(command or SLEEP)], env=self.environ(rank, **more))
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        while not environ_of(process.pid):  # exec ends Popen's wait before the new environment can be read
            time.sleep(0.001)
        return process.pid

    def join(self, rank: int, *child: str, **more: str) -> tuple[int, int]:
        """Starts a process that is ``rank`` in init() and starts ``child``; the ids of both."""
        process = subprocess.Popen(
            [sys.executable, "-c", IN_INIT, *child],
            env=self.environ(rank, **more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.callback(process.communicate)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        below = int(process.stdout.readline())
        if below:
            self._stack.callback(os.kill, below, signal.SIGKILL)
        return process.pid, below


@pytest.fixture
def processes() -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(stack)


def stop(*pids: int) -> set[int]:
    """Stops processes, and returns them with all others that are stopped."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: set(pids) <= stopped_processes().keys())
    return set(stopped_processes())


def test_a_process_that_has_gone_on_between_two_looks_looks_different(processes: Processes) -> None:
    pid = processes.start(1, "sh", "-c", "while :; do sleep 0.01; done")
    assert pid not in stopped_processes()
    stop(pid)
    until(lambda: stopped_processes()[pid] == stopped_processes()[pid])  # it may be just about to leave its core
    first = stopped_processes()[pid]
    assert first
    os.kill(pid, signal.SIGCONT)
    until(lambda: pid not in stopped_processes())
    stop(pid)
    assert stopped_processes()[pid] != first


def test_a_rank_is_known_by_what_it_was_started_with(processes: Processes) -> None:
    pid = processes.start(2)
    assert environ_of(pid) == processes.environ(2)
    stopped = stop(
        pid,
        processes.start(3, HVDLITE_JOB="another"),
        processes.start(1, HVDLITE_SIZE="5"),
        processes.start(1, HVDLITE_RANK="none"),
    )
    assert stopped_ranks(processes.start_of(0), stopped) == {2: [pid]}
    assert stopped_ranks(processes.start_of(0, HVDLITE_JOB="a third one"), stopped) == {}
    assert stopped_ranks(processes.start_of(0), set()) == {}


def test_a_rank_is_known_by_what_it_became(processes: Processes) -> None:
    pid, below = processes.join(2, *SLEEP)
    above = processes.start(2)
    assert stopped_ranks(processes.start_of(0), stop(pid, below, above)) == {2: sorted((pid, below, above))}


def test_a_rank_that_goes_on_is_not_stopped_because_its_child_is(processes: Processes) -> None:
    _, below = processes.join(2, *SLEEP)
    assert stopped_ranks(processes.start_of(0), stop(below)) == {}


def test_the_first_rank_that_waits_tells(processes: Processes) -> None:
    first, _ = processes.join(0)
    processes.join(1)
    pid = processes.start(3)
    stopped = stop(pid)
    assert [stopped_ranks(processes.start_of(rank), stopped) for rank in range(3)] == [{3: [pid]}, {}, {}]
    stopped = stop(first)
    assert stopped_ranks(processes.start_of(1), stopped) == {0: [first], 3: [pid]}
    assert stopped_ranks(processes.start_of(2), stopped) == {}


def test_hvdrun_tells_of_what_it_has_started_itself(processes: Processes) -> None:
    own = {"HVDLITE_RENDEZVOUS": "unix://@x", "HVDLITE_SECRET": "0" * 64}
    own_start = processes.start_of(0, **own)
    assert stopped_ranks(own_start, stop(processes.start(1, **own))) == {}
    shell = processes.start(3, "sh", "-c", "sleep 600 & wait", **own)
    until(lambda: bool(children_of(shell)))
    children = children_of(shell)
    try:
        assert stopped_ranks(own_start, stop(*children)) == {3: children}
    finally:
        os.kill(children[0], signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(each) for each in file.read().split()]
