"""The loop of hvdrun: carries frames, signals and deadlines to the supervisor, and does what it decides."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from .frames import FrameError, Kind, unpack_message, unpack_output
from .link import AgentLink
from .logs import Logs
from .output import Stream
from .plan import Plan
from .report import describe_failure
from .screen import Screen
from .sink import Sink
from .supervisor import Action, Close, Destroy, Failure, Phase, Signal, Supervisor

_READER_PATIENCE_S: Final = 60.0  # after the job, for a pager; hvdrun holds nothing up any more
_INTERRUPTED_PATIENCE_S: Final = 1.0
_AGENT_PATIENCE_S: Final = 2.0  # for an agent that has closed its output to end
_STREAMS: Final = {Kind.STDOUT: Stream.STDOUT, Kind.STDERR: Stream.STDERR}


FailureReport = Callable[[Failure, Sequence[str]], None]


def execute(
    plan: Plan, screen: Screen, logs: Logs | None, *, is_verbose: bool, on_failure: FailureReport | None = None
) -> int:
    """Runs the job and returns hvdrun's exit code. Raises CannotStart if an agent cannot be started.

    ``on_failure`` is called at the end of a job that failed, with the first failure and that rank's last lines.
    """
    execution = _Execution(plan, screen, logs, is_verbose)
    code = execution.run()
    if on_failure is not None and execution.failure is not None:
        on_failure(execution.failure, screen.tail(execution.failure.rank))
    return code


class _Execution:
    def __init__(self, plan: Plan, screen: Screen, logs: Logs | None, is_verbose: bool) -> None:
        self._plan, self._screen, self._logs, self._is_verbose = plan, screen, logs, is_verbose
        self._supervisor = Supervisor({place.rank: place.host for place in plan.placements}, time.monotonic())
        self._selector = selectors.DefaultSelector()
        self._links: dict[str, AgentLink] = {}
        self._waiting: set[Sink] = set()
        self._warned_of_logs = False

    @property
    def failure(self) -> Failure | None:
        return self._supervisor.failure

    def run(self) -> int:
        try:
            with _signals() as signals:
                self._selector.register(signals, selectors.EVENT_READ)
                self._start()
                while self._supervisor.phase is not Phase.FINISHED:
                    self._turn(signals)
        finally:
            for link in self._links.values():
                link.wait(_AGENT_PATIENCE_S)
            self._selector.close()
        return self._finish()

    def _start(self) -> None:
        plan = self._plan
        for host in plan.hosts:
            link = self._links[host] = AgentLink(host)
            self._selector.register(link, selectors.EVENT_READ)
            self._tell(f"agent of {host} is process {link.pid}")
            workers = [{"rank": rank, "environment": dict(plan.of_rank[rank])} for rank in plan.ranks_on(host)]
            environment = dict(plan.environment)
            link.send(Kind.START, cwd=plan.cwd, command=plan.command, environment=environment, workers=workers)

    def _turn(self, signals: int) -> None:
        deadline = self._supervisor.deadline
        timeout_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.fileobj, AgentLink):
                self._receive(key.fileobj)
            elif isinstance(key.fileobj, Sink):
                key.fileobj.flush()
            else:
                for signum in os.read(signals, 64):
                    self._interrupt(signum)
        self._act(self._supervisor.tick(time.monotonic()))
        self._screen.redraw()
        self._watch_sinks()

    def _receive(self, link: AgentLink) -> None:
        try:
            frames = link.receive()
            for kind, payload in frames or ():
                if kind in _STREAMS:
                    self._show(kind, payload)
                else:
                    self._note(link, kind, payload)
        except (FrameError, KeyError) as error:
            self._screen.message(f"hvdrun: the agent of {link.host} sent what cannot be understood: {error}")
            frames = None
        if frames is None:
            self._selector.unregister(link)
            self._act(self._supervisor.agent_ended(link.host, time.monotonic()))

    def _show(self, kind: Kind, payload: bytes) -> None:
        rank, data = unpack_output(payload)
        self._screen.show(rank, _STREAMS[kind], data)
        if self._logs:
            self._logs.write(rank, _STREAMS[kind], data)
            if self._logs.problem and not self._warned_of_logs:
                self._warned_of_logs = True
                self._screen.message(f"hvdrun: {self._logs.problem}; the ranks go on without it")

    def _note(self, link: AgentLink, kind: Kind, payload: bytes) -> None:
        message, now = unpack_message(payload), time.monotonic()
        rank = int(message["rank"])
        if kind is Kind.STARTED:
            link.pids[rank] = int(message["pid"])
            self._supervisor.started(rank)
            self._tell(f"rank {rank} on {link.host} is process {message['pid']}")
        elif kind is Kind.FAILED:
            self._tell(f"rank {rank} on {link.host} could not be started: {message['reason']}")
            self._act(self._supervisor.not_started(rank, message["reason"], now))
        elif kind is Kind.EXITED:
            link.pids.pop(rank, None)
            self._screen.end(rank)
            self._tell(f"rank {rank} on {link.host} ended with code {message['code']}")
            self._act(self._supervisor.exited(rank, message["pid"], message["code"], message["time"], now))

    def _interrupt(self, signum: int) -> None:
        if self._supervisor.phase is Phase.RUNNING:
            self._screen.message(
                f"hvdrun: {signal.Signals(signum).name}: ending {len(self._supervisor.alive)} rank(s); "
                "once more kills them at once"
            )
        self._act(self._supervisor.interrupted(signum, time.monotonic()))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Destroy):
                self._links[action.host].destroy()
                continue
            for link in self._links.values():
                if isinstance(action, Signal):
                    link.send(Kind.SIGNAL, signum=action.signum)
                elif isinstance(action, Close):
                    link.send(Kind.END, grace_s=action.grace_s)

    def _watch_sinks(self) -> None:
        waiting = set(self._screen.waiting)
        for sink in waiting - self._waiting:
            self._selector.register(sink, selectors.EVENT_WRITE)
        for sink in self._waiting - waiting:
            self._selector.unregister(sink)
        self._waiting = waiting

    def _finish(self) -> int:
        for rank in range(self._plan.size):
            self._screen.end(rank)
        failure = self._supervisor.failure
        if failure:
            log = self._logs.path(failure.rank, Stream.STDERR) if self._logs else None
            self._screen.message(*describe_failure(failure, self._screen.tail(failure.rank), log))
        if self._logs and self._logs.lost_bytes:
            self._screen.message(f"hvdrun: {self._logs.lost_bytes} bytes of the log files were dropped")
        interrupted = failure is None and self._supervisor.exit_code != 0
        self._screen.close(_INTERRUPTED_PATIENCE_S if interrupted else _READER_PATIENCE_S)
        return self._supervisor.exit_code

    def _tell(self, text: str) -> None:
        if self._is_verbose:
            self._screen.message(f"hvdrun: {text}")


@contextmanager
def _signals() -> Iterator[int]:
    """A descriptor that yields the numbers of the signals that ask hvdrun to end; those it ignores stay ignored."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    previous = {}
    old_wakeup = signal.set_wakeup_fd(write)
    try:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) is not signal.SIG_IGN:
                previous[signum] = signal.signal(signum, lambda *_: None)
        yield read
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(old_wakeup)
        with suppress(OSError):
            os.close(read)
            os.close(write)
