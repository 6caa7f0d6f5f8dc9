"""hvdrun's main loop: passes frames, signals and deadlines to the supervisor, and carries out its decisions."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from hvdlite.observe.blackbox import NBYTES
from hvdlite.settings import Settings

from ..agents.agents import Agents
from ..agents.fields import ended_by, field, figure, integer, line, lines
from ..agents.lease import SILENCE_S, Lease
from ..agents.link import AgentLink
from ..monitor.monitor import Monitor
from ..screen.output import Stream
from ..screen.screen import Screen
from ..stream.frames import FrameError, Kind, unpack_message, unpack_output
from ..stream.loop import WRITE
from ..stream.signals import caught
from ..stream.sink import Sink
from .blame import box, strangers
from .input import Input
from .logs import Logs
from .plan import Plan
from .reports import Reports
from .supervisor import GRACE_S, Action, Close, Destroy, Failure, Phase, Signal, Supervisor
from .times import Times

_READER_PATIENCE_S: Final = 60.0  # after the job, for a pager; hvdrun holds nothing up any more
_INTERRUPTED_PATIENCE_S: Final = 1.0
_STREAMS: Final = {Kind.STDOUT: Stream.STDOUT, Kind.STDERR: Stream.STDERR}
_FORWARDED: Final = (signal.SIGUSR1, signal.SIGUSR2)  # as Slurm sends before it takes the hosts away
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MOST_PID: Final = 1 << 22  # Linux has none above
_MOST_CODE: Final = 255
_MOST_BOX_BYTES: Final = 2 * NBYTES
_AGENT_DIED: Final = "the process that started it died"


FailureReport = Callable[[Failure, Sequence[str]], bool]


def execute(
    plan: Plan,
    agents: Agents,
    screen: Screen,
    logs: Logs | None,
    *,
    readers: Collection[int] = (),
    grace_s: float = GRACE_S,
    is_verbose: bool,
    on_failure: FailureReport | None = None,
    has_met: Callable[[], bool] = lambda: False,
) -> int:
    """Runs the job on ``agents``, one for each of its hosts, until all have ended. Returns hvdrun's exit code.

    The ranks ``readers`` get what comes on stdin. ``grace_s`` is that of `Supervisor`.
    ``on_failure`` is called at the end of a job that failed, with the first failure and that rank's last lines, and
    returns whether the user is to be told here. ``has_met`` is True once a rank has called `init`.
    """
    return _Execution(plan, agents, screen, logs, readers, grace_s, is_verbose, on_failure, has_met).run()


class _Execution:
    def __init__(
        self,
        plan: Plan,
        agents: Agents,
        screen: Screen,
        logs: Logs | None,
        readers: Collection[int],
        grace_s: float,
        is_verbose: bool,
        on_failure: FailureReport | None,
        has_met: Callable[[], bool],
    ) -> None:
        self._on_failure, self._has_met = on_failure, has_met
        self._plan, self._screen, self._logs, self._is_verbose = plan, screen, logs, is_verbose
        self._agents, self._loop = agents, agents.loop
        self._links = {host: agents.links[host] for host in plan.hosts}
        self._began = time.monotonic()
        hosts = {place.rank: place.host for place in plan.placements}
        self._supervisor = Supervisor(hosts, self._began, grace_s)
        # srun, if it is killed, does not end the stream of an agent, not even here.
        leased = [link for link in self._links.values() if link.is_remote or link.way.is_scheduled]
        self._lease = Lease(leased, time.monotonic())
        self._grace_s = grace_s
        self._ranks = {host: frozenset(plan.ranks_on(host)) for host in plan.hosts}
        self._link_of = {rank: link for host, link in self._links.items() for rank in self._ranks[host]}
        self._readers = frozenset(readers)
        self._input = Input(self._loop, 0, self._readers, self._send_input, screen.answered)
        self._waiting: set[Sink] = set()
        self._interrupters: set[str] = set()  # the hosts that were asked by a signal to end the job
        self._warned_of_logs = False
        self._reports = Reports(screen, {link: self._ranks[host] for host, link in self._links.items()})
        self._monitor = Monitor(
            self._loop, {link: plan.ranks_on(host) for host, link in self._links.items()}, self._job
        )
        began = min(link.started for link in self._links.values())
        self._times = Times(hosts, began, lambda rank: self._reports.causes.get(rank, ""))
        self._says_times = Settings.read(plan.environment).summary
        self._alone: set[int] = set()  # the ranks that showed no sign of others

    def run(self) -> int:
        self._agents.attend(self._receive, self._show_line, self._lose, self._take_signal_of)
        try:
            with caught((*_ENDING, *_FORWARDED, signal.SIGTSTP)) as signals:
                self._loop.watch(signals, lambda: self._take_signals(signals))
                self._start()
                for link in self._links.values():
                    if link.is_over:  # since it was connected
                        self._lose(link)
                while self._supervisor.phase is not Phase.FINISHED:
                    self._turn()
                self._conclude()
                self._loop.unwatch(signals)
        finally:
            has_ended = self._supervisor.phase is Phase.FINISHED
            self._monitor.close(self._supervisor.exit_code if has_ended else None)
            self._input.close()
            self._watch_sinks(set())
            self._agents.close()
        return self._finish()

    def _start(self) -> None:
        for host, link in self._links.items():
            part = self._plan.on(host)
            self._tell(f"the way to the agent of {host} is {link.way}; ranks start in {part.cwd}")
            link.services = part.services
            workers = [
                {"rank": rank, "environment": dict(self._plan.of_rank[rank]), "stdin": rank in self._readers}
                for rank in part.ranks
            ]
            link.send(
                Kind.START,
                cwd=part.cwd,
                command=self._plan.command,
                environment=dict(part.environment),
                appended=dict(part.appended),
                inherits=link.is_remote,
                listen={name: service for service, name in part.names.items()},
                workers=workers,
                grace_s=self._grace_s,
                keeps_boxes=self._logs is not None,
            )
        self._screen.asks = min(self._readers, default=None)
        self._input.begin()

    def _turn(self) -> None:
        times = (
            self._supervisor.deadline,
            self._lease.deadline,
            self._input.deadline,
            self._screen.deadline,
            self._monitor.deadline,
            self._reports.deadline,
        )
        deadlines = [when for when in times if when is not None]
        self._loop.turn(max(0.0, min(deadlines) - time.monotonic()) if deadlines else None)
        now = time.monotonic()
        self._input.tick(now)
        for link in self._lease.tick(now):
            self._act(
                self._supervisor.host_lost(link.host, now, f"no sign of life from {link.host} for {SILENCE_S:.0f} s")
            )
        self._act(self._supervisor.tick(now))
        self._monitor.tick(now)
        self._reports.tick(now)
        self._screen.redraw()
        self._watch_sinks(set(self._screen.waiting))

    def _job(self) -> dict[str, Any]:
        """What there is to say of the job to those who ask."""
        now = time.monotonic()
        return {
            "pid": os.getpid(),
            "command": self._plan.command,
            "logs": self._logs.folder if self._logs else "",
            "size": self._plan.size,
            "ran_s": now - self._began,
            "alive": sorted(self._supervisor.alive),
            "hosts": {host: self._plan.ranks_on(host) for host in self._plan.hosts},
            "found": self._reports.latest,
            "found_ago_s": now - self._reports.latest_at,
        }

    def _receive(self, link: AgentLink, kind: Kind, payload: bytes) -> None:
        if kind in _STREAMS:
            self._show(link, kind, payload)
        elif kind is Kind.TAKEN:
            self._note_taken(link, payload)
        else:
            self._note(link, kind, payload)

    def _send_input(self, rank: int, data: bytes) -> None:
        self._link_of[rank].send_input(rank, data)
        if not data:
            self._screen.asks = None

    def _note_taken(self, link: AgentLink, payload: bytes) -> None:
        message = unpack_message(payload)
        rank = self._rank(link, message)
        if "count" in message and message["count"] is None:
            self._input.left(rank)
        else:
            self._input.taken(rank, field(message, "count", int))

    def _rank(self, link: AgentLink, message: Mapping[str, Any]) -> int:
        return self._check(link, field(message, "rank", int))

    def _check(self, link: AgentLink, rank: int) -> int:
        if rank not in self._ranks[link.host]:
            raise FrameError(f"rank {rank} is not one of its own")
        return rank

    def _show_line(self, link: AgentLink, line: str) -> None:
        self._screen.message(f"hvdrun: {link.host}: {line}")

    def _lose(self, link: AgentLink) -> None:
        if link.host in self._links:
            self._act(self._supervisor.agent_ended(link.host, time.monotonic(), self._why_gone(link)))

    def _why_gone(self, link: AgentLink) -> str:
        if self._supervisor.phase is Phase.CLOSING:
            return ""  # it was told to end
        return link.explain() if link.is_remote or link.problem else _AGENT_DIED

    def _show(self, link: AgentLink, kind: Kind, payload: bytes) -> None:
        rank, data = unpack_output(payload)
        self._check(link, rank)
        self._screen.show(rank, _STREAMS[kind], data)
        if self._logs:
            self._logs.write(rank, _STREAMS[kind], data)
            self._warn_of_logs(self._logs)

    def _keep(self, link: AgentLink, rank: int, message: Mapping[str, Any]) -> None:
        """Keeps the black box of a rank; whoever reads it checks it."""
        box = {"at": field(message, "at", float), "epoch_s": field(message, "epoch_s", float)}
        text = json.dumps({"host": link.host, "rank": rank, **box, "box": field(message, "box", str)}).encode()
        if len(text) > _MOST_BOX_BYTES:
            raise FrameError(f"a black box of {len(text)} bytes")
        if self._logs:
            self._logs.keep_box(rank, text)
            self._warn_of_logs(self._logs)

    def _warn_of_logs(self, logs: Logs) -> None:
        if logs.problem and not self._warned_of_logs:
            self._warned_of_logs = True
            self._screen.message(f"hvdrun: {logs.problem}; the ranks go on without it")

    def _note(self, link: AgentLink, kind: Kind, payload: bytes) -> None:
        message, now = unpack_message(payload), time.monotonic()
        rank = self._rank(link, message)
        if kind is Kind.STARTED:
            link.pids[rank] = integer(message, "pid", 1, _MOST_PID)
            self._screen.name(rank, link.pids[rank])
            self._supervisor.started(rank)
            self._tell(f"rank {rank} on {link.host} is process {link.pids[rank]}")
        elif kind is Kind.STOPPED:
            pid = integer(message, "pid", 1, _MOST_PID)
            self._screen.message(
                f"hvdrun: rank {rank} on {link.host}, process {pid}, is stopped (SIGSTOP, a debugger); "
                "ranks that need it wait until it goes on (SIGCONT)"
            )
        elif kind is Kind.BOX:
            self._keep(link, rank, message)
        elif kind is Kind.FOUND:
            self._reports.found(link, rank, message.get("finding"))
        elif kind is Kind.FAILED:
            reason = line(message.get("reason"))
            self._tell(f"rank {rank} on {link.host} could not be started: {reason}")
            self._input.left(rank)
            self._act(self._supervisor.not_started(rank, reason, now))
        elif kind is Kind.EXITED:
            code, pid = integer(message, "code", -_MOST_CODE, _MOST_CODE), integer(message, "pid", 1, _MOST_PID)
            ended = link.clock.translate(figure(message, "time"))
            link.pids.pop(rank, None)
            self._input.left(rank)
            self._screen.end(rank)
            self._tell(f"rank {rank} on {link.host} ended with code {code}")
            self._times.ended(rank, message.get("spent"), ended, now)
            if message.get("is_alone") is True:
                self._alone.add(rank)
            self._act(
                self._supervisor.exited(
                    rank,
                    pid,
                    code,
                    ended,
                    now,
                    is_oom=field(message, "is_oom", bool),
                    uncertain_s=link.clock.uncertain_s,
                    ended_by=ended_by(message.get("ended_by")),
                    agent=line(message.get("agent")),
                    last=lines(message.get("last")),
                )
            )

    def _take_signals(self, signals: int) -> None:
        for signum in os.read(signals, 64):
            if signum == signal.SIGTSTP:
                self._lease.suspend(time.monotonic())
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                self._take_signal(signum)

    def _take_signal_of(self, link: AgentLink, signum: int) -> None:
        if signum not in (*_ENDING, *_FORWARDED):
            raise FrameError(f"signal {signum} is none that a host may pass on")
        self._take_signal(signum, link.host)

    def _take_signal(self, signum: int, host: str = "") -> None:
        """Acts on a signal to hvdrun, here or on another ``host`` of the job."""
        if signum in _FORWARDED:
            for link in self._links.values():
                link.send(Kind.SIGNAL, signum=signum, everyone=False)
        elif not self._interrupters or (host in self._interrupters and not self._is_repeated(signum)):
            self._interrupters.add(host)
            self._interrupt(signum, host)
        else:  # whatever ends a job on all of its hosts signals each of them once, which is no second signal
            self._interrupters.add(host)

    def _is_repeated(self, signum: int) -> bool:
        """True if a scheduler may send ``signum`` more than once, and nobody means anything by the second time."""
        return signum == signal.SIGTERM and any(link.way.is_scheduled for link in self._links.values())

    def _interrupt(self, signum: int, host: str) -> None:
        if self._supervisor.phase is Phase.RUNNING:
            where = f" on {host}" if host else ""
            more = "" if self._is_repeated(signum) else "; once more kills them at once"
            self._screen.message(
                f"hvdrun: {signal.Signals(signum).name}{where}: ending {len(self._supervisor.alive)} rank(s){more}"
            )
        self._act(self._supervisor.interrupted(signum, time.monotonic()))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Destroy):
                self._links[action.host].destroy()
                continue
            for link in self._links.values():
                if isinstance(action, Signal):
                    link.send(Kind.SIGNAL, signum=action.signum, everyone=True)
                elif isinstance(action, Close):
                    link.send(Kind.END, patience_s=action.patience_s, grace_s=action.grace_s)
            if isinstance(action, Close):  # all ranks have ended, so nothing can change the exit code
                self._conclude()

    def _conclude(self) -> None:
        for link in self._links.values():
            link.way.conclude(self._supervisor.exit_code)

    def _watch_sinks(self, waiting: set[Sink]) -> None:
        for sink in waiting - self._waiting:
            self._loop.watch(sink.fileno(), sink.flush, WRITE)
        for sink in self._waiting - waiting:
            self._loop.unwatch(sink.fileno())
        self._waiting = waiting

    def _finish(self) -> int:
        for rank in range(self._plan.size):
            self._screen.end(rank)
        self._reports.close()
        self._screen.flush()
        if self._says_times and (line := self._times.line(time.monotonic())):
            self._screen.message(f"hvdrun: {line}")  # first, as a failure is what the user is to see
        if self._says_times and self._are_strangers():
            self._screen.message(f"hvdrun: {strangers(self._plan)}")
        failure = self._supervisor.failure
        if failure and (self._on_failure is None or self._on_failure(failure, self._last_lines(failure))):
            rank = failure.to_look_at
            done, batches = rank in self._supervisor.done, self._times.batches(rank)
            self._screen.message(*box(failure, self._plan, self._screen, self._logs, done=done, batches=batches))
        if self._logs and self._logs.lost_bytes:
            self._screen.message(f"hvdrun: {self._logs.lost_bytes} bytes of the log files were dropped")
        interrupted = failure is None and self._supervisor.exit_code != 0
        self._screen.close(_INTERRUPTED_PATIENCE_S if interrupted else _READER_PATIENCE_S)
        return self._supervisor.exit_code

    def _are_strangers(self) -> bool:
        """True if a job that ended well was the same program several times, with nothing that its ranks did together.

        A function that `hvdlite.run` calls on each rank may be meant so.
        """
        is_well = self._supervisor.exit_code == 0 and self._on_failure is None
        return is_well and len(self._alone) == self._plan.size > 1 and not self._has_met()

    def _last_lines(self, failure: Failure) -> Sequence[str]:
        return (failure.is_by_signal and self._screen.crash(failure.rank)) or self._screen.tail(failure.rank)

    def _tell(self, text: str) -> None:
        if self._is_verbose:
            self._screen.message(f"hvdrun: {text}")
