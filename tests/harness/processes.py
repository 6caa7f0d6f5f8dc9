"""Ranks as real processes of one job, which a test can watch, stop and kill, within a hard deadline.

`ProcessRanks` starts a rendezvous server and ``count`` workers, each in a process group of its own with the variables
that a launcher would give it. They are forks of a process that has imported hvdlite, or torch too (forkserver.py).
Every worker runs one function of the test's module and reports over a private channel. Workers that have shut down
leave without tearing their interpreters down, except in the first job of each test file (worker.py).
At the deadline every living rank prints the stacks of all its threads, and is killed.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType
from typing import IO, Any

import psutil

from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.server import RendezvousServer
from tests.harness.forkserver import PLAIN, ForkServer
from tests.harness.outcome import Outcome
from tests.harness.patience import LAST_RESORTS, PATIENCE_S, PROMPT_S

_STACK_DUMP_S = PROMPT_S
_seen_files: set[str] = set()


class RanksTimedOut(AssertionError):
    """Ranks had not ended at the deadline. The message holds their stacks and output."""


@dataclass
class _Worker:
    rank: int
    process: psutil.Process
    channel: Connection[Any, Any]
    output: IO[bytes]
    points: dict[str, float] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        try:
            self.process.wait(0)
        except psutil.TimeoutExpired:
            return False
        return True

    def read_output(self) -> str:
        self.output.seek(0)
        return self.output.read().decode(errors="replace")


class ProcessRanks:
    """``count`` processes that each run ``work(*arguments)``; a context manager that leaves no process behind.

    ``work`` is a function at the top of an importable module. ``environ`` is added to every rank's environment and
    ``environ_by_rank[rank]`` to one rank's; ranks with equal HVDLITE_HOSTID are on one host. The ranks are forked from
    ``server``. ``job`` holds the name and the key of their job.
    """

    def __init__(
        self,
        count: int,
        work: Callable[..., Any],
        *arguments: Any,
        deadline_s: float = PATIENCE_S,
        environ: Mapping[str, str] | None = None,
        environ_by_rank: Mapping[int, Mapping[str, str]] | None = None,
        server: ForkServer = PLAIN,
    ) -> None:
        self._server = server
        self._workers: list[_Worker] = []
        self._cleanup = ExitStack()
        task = (work.__module__, work.__qualname__, arguments, _is_first_of_its_file())
        own = [{**(environ or {}), **(environ_by_rank or {}).get(rank, {})} for rank in range(count)]
        with ExitStack() as undo:
            undo.callback(self.close)
            self.job = job = Job.create()
            meeting = self._cleanup.enter_context(RendezvousServer(job, count))
            shared = {"HVDLITE_JOB": job.name, "HVDLITE_SECRET": job.secret, "HVDLITE_RENDEZVOUS": meeting.address}
            if count > len(os.sched_getaffinity(0)):
                shared["HVDLITE_SPIN"] = "0"  # fictitious hosts share the cores of this one without knowing it
            shared |= LAST_RESORTS
            for rank, place in enumerate(_places([variables.get("HVDLITE_HOSTID", "") for variables in own])):
                self._start(rank, {**shared, **place, **own[rank]}, task)
            undo.pop_all()
        self._deadline_s = deadline_s
        self._deadline = time.monotonic() + deadline_s

    def _start(self, rank: int, variables: Mapping[str, str], task: tuple[Any, ...]) -> None:
        inherited = {key: text for key, text in os.environ.items() if not key.startswith(("HVDLITE_", "HOROVOD_"))}
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the stack
        self._cleanup.callback(output.close)
        here, there = Pipe()
        self._cleanup.enter_context(here)
        with there:
            process = self._server.fork(there.fileno(), output.fileno())
        self._workers.append(_Worker(rank, process, here, output))
        here.send(({**inherited, "OMP_NUM_THREADS": "1", **variables}, *task))

    def pid(self, rank: int) -> int:
        return self._workers[rank].process.pid

    def wait_for(self, point: str, *ranks: int) -> None:
        """Returns once ``ranks`` (all, if none is named) have reached ``point``. Raises if one ends before."""
        waited = [self._workers[rank] for rank in ranks] or self._workers
        while late := [worker for worker in waited if point not in worker.points]:
            for worker in late:
                if worker.channel.closed:
                    raise AssertionError(f"rank {worker.rank} ended before {point!r}\n{self._outcome(worker).output}")
            self._receive()

    def wait_for_end(self, *ranks: int) -> None:
        """Returns once the functions of ``ranks`` have returned or raised, or their processes are gone."""
        while any(self.is_running(rank) for rank in ranks):
            self._receive()

    def wait_for_an_end(self, *ranks: int) -> int:
        """The first of ``ranks`` whose function is known to have ended."""
        while True:
            for rank in ranks:
                if not self.is_running(rank):
                    return rank
            self._receive()

    def is_running(self, rank: int) -> bool:
        """True unless the rank is known to have ended its function."""
        worker = self._workers[rank]
        return not worker.report and not worker.channel.closed

    def points(self, rank: int) -> list[str]:
        """The points that ``rank`` has reached, in order."""
        return list(self._workers[rank].points)

    def time_of(self, point: str, rank: int) -> float:
        """The time at which ``rank`` reached ``point``, on the monotonic clock."""
        return self._workers[rank].points[point]

    def release(self, *ranks: int) -> None:
        """Lets ``ranks`` (all, if none is named) go on from `pause_at`."""
        for worker in [self._workers[rank] for rank in ranks] or self._workers:
            worker.channel.send("go")

    def send_signal(self, rank: int, number: signal.Signals) -> float:
        """Sends a signal to the rank's process group and returns the monotonic time just before."""
        now = time.monotonic()
        os.killpg(self.pid(rank), number)
        return now

    def kill(self, rank: int) -> float:
        return self.send_signal(rank, signal.SIGKILL)

    def join(self) -> list[Outcome]:
        """The outcomes in rank order, once every rank has ended. Raises RanksTimedOut at the deadline."""
        while any(not worker.channel.closed for worker in self._workers):
            self._receive()
        return [self._outcome(worker) for worker in self._workers]

    def close(self) -> None:
        """Kills what still runs and frees everything. May be called twice."""
        for worker in self._workers:
            if not worker.has_ended:
                os.killpg(worker.process.pid, signal.SIGKILL)
                worker.process.wait()
        self._cleanup.close()

    def __enter__(self) -> ProcessRanks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self) -> None:
        """Waits for a message of at least one rank, and handles all that have come."""
        by_channel = {worker.channel: worker for worker in self._workers if not worker.channel.closed}
        ready = wait(list(by_channel), max(0.0, self._deadline - time.monotonic()))
        if not ready:
            self._time_out()
        for channel in ready:
            worker = by_channel[channel]  # type: ignore[index]
            try:
                kind, *message = worker.channel.recv()
            except (EOFError, ConnectionResetError):
                worker.channel.close()
                continue
            if kind == "reached":
                worker.points[message[0]] = message[1]
            elif kind == "returned":
                worker.report = dict(zip(("value", "ended_at"), message, strict=True))
            else:
                worker.report = dict(zip(("error", "message", "details", "ended_at"), message, strict=True))

    def _outcome(self, worker: _Worker) -> Outcome:
        try:
            exit_code = worker.process.wait(max(0.0, self._deadline - time.monotonic()))
        except psutil.TimeoutExpired:
            self._time_out()
        return Outcome(worker.rank, exit_code, worker.read_output(), **worker.report)

    def _time_out(self) -> None:
        """Makes the living ranks print their stacks (faulthandler, on SIGABRT) and raises RanksTimedOut."""
        late = [worker for worker in self._workers if not worker.has_ended]
        for worker in late:
            for number in (signal.SIGABRT, signal.SIGCONT):
                with suppress(psutil.NoSuchProcess):
                    worker.process.send_signal(number)
        for worker in late:
            with suppress(psutil.TimeoutExpired):
                worker.process.wait(_STACK_DUMP_S)
        reports = [
            f"--- rank {worker.rank}: {'still running' if worker in late else worker.report or 'ended'}; "
            f"points reached: {', '.join(worker.points) or 'none'}\n{worker.read_output()}"
            for worker in self._workers
        ]
        raise RanksTimedOut(f"ranks had not ended after {self._deadline_s:g} s\n" + "\n".join(reports))


def process_ranks(count: int, work: Callable[..., Any], *arguments: Any, **options: Any) -> list[Outcome]:
    """Runs ``work(*arguments)`` in ``count`` processes of one job; the outcomes in rank order. See `ProcessRanks`."""
    with ProcessRanks(count, work, *arguments, **options) as ranks:
        return ranks.join()


def _is_first_of_its_file() -> bool:
    """True the first time that the test file which pytest runs asks."""
    file = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    is_first = file not in _seen_files
    _seen_files.add(file)
    return is_first


def _places(hosts: list[str]) -> Iterator[dict[str, str]]:
    """The variables with each rank's placement, given the host of each."""
    sizes = Counter(hosts)
    for rank, host in enumerate(hosts):
        local_rank = hosts[:rank].count(host)
        peers = [name for name in dict.fromkeys(hosts) if sizes[name] > local_rank]
        numbers = {
            "RANK": rank,
            "SIZE": len(hosts),
            "LOCAL_RANK": local_rank,
            "LOCAL_SIZE": sizes[host],
            "CROSS_RANK": peers.index(host),
            "CROSS_SIZE": len(peers),
        }
        yield {f"HVDLITE_{name}": str(number) for name, number in numbers.items()}
