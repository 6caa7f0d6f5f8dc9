"""Jobs with a rank that something makes slow, and what hvdrun says about it."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from tests.harness import cgroups, faults
from tests.harness.hosts import Network
from tests.harness.patience import PATIENCE_S
from tests.harness.slow_training import Control
from tests.launcher.hvdrun import COMMAND

_SAID: Final = re.compile(r"hvdrun: rank (\d+) on (\S+) makes all others wait, .*?\), ([a-z ]+): (.*)")
_ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1"}
_EQUAL_STEPS: Final = 20
_IDLE_BYTES: Final = 2000  # of a connection that is only there
_BUSY: Final = (sys.executable, "-I", "-S", "-c", "while True: pass")


class Named(NamedTuple):
    """That hvdrun named a rank, with all that it said, after so many seconds and steps."""

    rank: int
    phase: str
    cause: str
    after_s: float
    steps: int
    line: str


@dataclass(frozen=True)
class Fault:
    """What makes a rank slow: inside of it (`tests.harness.slow_training`), or from ``outside``.

    ``says`` is part of the cause that hvdrun is to say. ``controller`` is the control group that is needed.
    """

    name: str
    says: str
    outside: Callable[[psutil.Process], AbstractContextManager[object]] = lambda process: nullcontext()
    controller: str = ""
    is_network: bool = False

    def missing(self) -> str:
        """What the system lacks for it; empty if nothing."""
        return cgroups.missing(self.controller) if self.controller else ""


@contextmanager
def _crowded(process: psutil.Process) -> Iterator[None]:
    """All of ``process`` on one core, where twelve other processes compute."""
    core = min(os.sched_getaffinity(0))
    for thread in process.threads():
        os.sched_setaffinity(thread.id, {core})
    with ExitStack() as busy:
        for _ in range(12):
            other = busy.enter_context(subprocess.Popen(_BUSY, start_new_session=True))
            busy.callback(other.kill)
            os.sched_setaffinity(other.pid, {core})
        yield


@contextmanager
def _interrupted(process: psutil.Process) -> Iterator[None]:
    """``process`` stopped again and again, for 0.2 s."""
    is_over = threading.Event()

    def pulse() -> None:
        while not is_over.wait(0.08):
            process.suspend()
            is_over.wait(0.2)
            process.resume()

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _losing(network: Network) -> AbstractContextManager[object]:
    """Loses a quarter of what a rank on host b tells rank 0 on host a, but nothing of what they reduce.

    If that is lost too, ranks are late in turns, because one of them has its result later than the other.
    """
    here, there = network["a"], network["b"].addresses[0]
    listening = {line.split()[3].rpartition(":")[2] for line in here.check("ss", "-Hltn").splitlines()} - {"22"}
    lines = iter(here.check("ss", "-Htin", "state", "established", "dst", there).splitlines())
    received = {}  # bytes, by the port here
    for line, more in zip(lines, lines, strict=True):
        port, count = line.split()[2].rpartition(":")[2], re.search(r"bytes_received:(\d+)", more)
        if port in listening and count and int(count[1]) > _IDLE_BYTES:
            received[port] = int(count[1])
    port = min(received, key=lambda each: received[each])  # requests and decisions are shorter than gradients
    lost = f"ip saddr {there} tcp dport {port} numgen random mod 100 < 25 drop"
    return faults.rule(here, "prerouting", lost)


FAULTS: Final = {
    fault.name: fault
    for fault in (
        Fault("throttled", "its cgroup throttles it", lambda process: cgroups.starved([process], 12), "cpu"),
        Fault("queue", "it waits for a processor", _crowded),
        Fault("gil", "its main thread waits for the GIL"),
        Fault("collecting", "Python collects garbage"),
        Fault("faults", "page faults take it"),
        Fault(
            "memory",
            "its cgroup is at its memory limit",
            lambda process: cgroups.short_of_memory([process], 16 << 20),
            "memory",
        ),
        Fault("loading", "it waits for data"),
        Fault("stopped", "a signal stopped it", _interrupted),
        Fault("packets", "packets between its host and that of rank 0 are lost", is_network=True),
    )
}


class SlowJob:
    """A job that makes equal steps until something happens to a rank. A context manager."""

    def __init__(self, ranks: int, fault: str, network: Network | None = None) -> None:
        self._closing = ExitStack()
        self._network = network
        folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="slow-")))
        path = folder / "control"
        path.write_bytes(bytes(Control.NBYTES))
        self.control = Control(path)
        self._closing.callback(self.control.close)
        program = [sys.executable, "-m", "tests.harness.slow_training", str(path), fault]
        if network is None:
            command, environment = [*COMMAND, "-np", str(ranks), *program], {**os.environ, **_ENVIRONMENT}
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
            self._process = self._closing.enter_context(process)
            self._closing.callback(process.kill)
        else:
            command = [*COMMAND, "-H", f"a:{ranks - 1},b:1", *program]
            self._process = self._closing.enter_context(network["a"].popen(*command, env=_ENVIRONMENT))
        self.said = ""

    def __enter__(self) -> SlowJob:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def wait_for_steps(self, more: int) -> None:
        """Returns when rank 0 has made that many steps more. Fails if they do not come in time."""
        until_steps = self.control.steps + more
        deadline = time.monotonic() + PATIENCE_S
        while self.control.steps < until_steps:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise AssertionError(f"no {more} steps: {self.said}")
            self._read(0.02)

    def name(self, fault: Fault, rank: int, within_s: float = PATIENCE_S) -> Named | None:
        """Lets ``fault`` happen to ``rank``, until hvdrun names a rank. None if it does not within that time."""
        self.wait_for_steps(_EQUAL_STEPS)
        known = len(self.said)
        if fault.is_network:
            assert self._network is not None
            act: AbstractContextManager[object] = _losing(self._network)
        else:
            act = fault.outside(psutil.Process(self.control.pid(rank)))
        with act:
            began, before = time.monotonic(), self.control.steps
            self.control.slow = rank
            while time.monotonic() - began < within_s and self._process.poll() is None:
                if found := _SAID.search(self.said, known):
                    after_s, steps = time.monotonic() - began, self.control.steps - before
                    return Named(int(found[1]), found[3], found[4], after_s, steps, found[0])
                self._read(0.05)
        return None

    def finish(self) -> int:
        """Lets the job end; returns hvdrun's exit code."""
        self.control.slow = -1
        self.control.stop()
        while self._read(PATIENCE_S):
            pass
        return self._process.wait(PATIENCE_S)

    def names(self) -> list[str]:
        """What hvdrun has said about slow ranks so far."""
        return [found[0] for found in _SAID.finditer(self.said)]

    def _read(self, timeout_s: float) -> bool:
        """Takes in what hvdrun has said; false at the end of it, or if nothing came in time."""
        assert self._process.stderr is not None
        if not select.select([self._process.stderr], [], [], timeout_s)[0]:
            return False
        data = os.read(self._process.stderr.fileno(), 1 << 16)
        self.said += data.decode()
        return bool(data)
