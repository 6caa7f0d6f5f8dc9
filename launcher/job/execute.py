"""hvdrun's main loop: passes frames, signals and deadlines to the supervisor, and carries out its decisions."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from hvdlite.settings import Settings

from ..agents.agents import Agents
from ..agents.lease import SILENCE_S, Lease
from ..agents.link import AgentLink, Listener
from ..decisions.plan import Plan
from ..decisions.supervisor import GRACE_S, Action, Close, Destroy, Exit, Failure, Phase, Signal, Supervisor
from ..monitor.monitor import Monitor
from ..reports.reports import Reports
from ..reports.times import Times
from ..screen.output import Stream
from ..screen.screen import Screen
from ..stream import messages
from ..stream.frames import FrameError
from ..stream.signals import ANNOUNCING, ENDING, caught
from .blame import box, strangers
from .input import Input
from .logs import Logs

_READER_PATIENCE_S: Final = 60.0  # after the job, for a pager; hvdrun holds nothing up any more
_INTERRUPTED_PATIENCE_S: Final = 1.0
_AGENT_DIED: Final = "the process that started it died"


FailureReport = Callable[[Failure, Sequence[str]], bool]


class Execution:
    """A job on ``agents``, one for each of its hosts.

    The ranks ``readers`` get what comes on stdin. ``grace_s`` is that of `Supervisor`. ``on_failure`` is called at the
    end of a job that failed, with the first failure and that rank's last lines, and returns whether hvdrun shows the
    failure. ``has_met`` is True once a rank has called `init`.
    """

    def __init__(
        self,
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
    ) -> None:
        self._on_failure, self._has_met = on_failure, has_met
        self._plan, self._screen, self._logs, self._is_verbose = plan, screen, logs, is_verbose
        self._grace_s = grace_s
        self._agents, self._loop = agents, agents.loop
        self._links = {host: agents.links[host] for host in plan.hosts}
        self._began = time.monotonic()
        hosts = {place.rank: place.host for place in plan.placements}
        self._supervisor = Supervisor(hosts, self._began, grace_s)
        self._next_phase = self._loop.at(self._supervisor.deadline, self._end_phase)
        # srun, if it is killed, does not end the stream of an agent, not even here.
        leased = [link for link in self._links.values() if link.is_remote or link.way.is_scheduled]
        self._lease = Lease(leased, time.monotonic())
        self._next_lease = self._loop.at(self._lease.deadline, self._renew_lease)
        self._ranks = {host: frozenset(plan.ranks_on(host)) for host in plan.hosts}
        self._link_of = {rank: link for host, link in self._links.items() for rank in self._ranks[host]}
        self._readers = frozenset(readers)
        self._input = Input(self._loop, 0, self._readers, self._send_input, screen.answered)
        self._interrupters: set[str] = set()  # the hosts that were asked by a signal to end the job
        self._warned_of_logs = False
        self._reports = Reports(screen, {link: self._ranks[host] for host, link in self._links.items()})
        self._next_report = self._loop.at(None, self._report)
        self._monitor = Monitor(
            self._loop, {link: plan.ranks_on(host) for host, link in self._links.items()}, self._job
        )
        began = min(link.started for link in self._links.values())
        self._times = Times(hosts, began, lambda rank: self._reports.causes.get(rank, ""))
        self._says_times = Settings.read(plan.environment).summary
        self._alone: set[int] = set()  # the ranks that showed no sign of others

    def run(self) -> int:
        """Runs the job until all ranks have ended. Returns hvdrun's exit code."""
        self._agents.attend(Listener(self._receive, self._show_line, self._lose))
        try:
            with caught((*ENDING, *ANNOUNCING, signal.SIGTSTP)) as signals:
                self._loop.watch(signals, lambda: self._take_signals(signals))
                self._start()
                for link in self._links.values():
                    if link.is_over:  # since it was connected
                        self._lose(link)
                while self._supervisor.phase is not Phase.FINISHED:
                    self._loop.turn(self._screen.deadline)
                    self._screen.redraw()
                self._conclude()
                self._loop.unwatch(signals)
        finally:
            has_ended = self._supervisor.phase is Phase.FINISHED
            self._monitor.close(self._supervisor.exit_code if has_ended else None)
            self._input.close()
            self._screen.leave_loop()
            self._agents.close()
        return self._finish()

    def _start(self) -> None:
        for host, link in self._links.items():
            part = self._plan.on(host)
            self._say(f"the way to the agent of {host} is {link.way}; ranks start in {part.cwd}")
            link.services = part.services
            workers = tuple(
                messages.WorkerStart(rank, self._plan.of_rank[rank], rank in self._readers) for rank in part.ranks
            )
            link.send(
                messages.Start(
                    part.cwd,
                    tuple(self._plan.command),
                    dict(part.environment),
                    dict(part.appended),
                    link.is_remote,
                    {name: service for service, name in part.names.items()},
                    workers,
                    self._grace_s,
                    keeps_boxes=self._logs is not None,
                )
            )
        self._screen.asks = min(self._readers, default=None)
        self._input.begin()

    def _end_phase(self) -> None:
        self._act(self._supervisor.tick(time.monotonic()))

    def _renew_lease(self) -> None:
        now = time.monotonic()
        for link in self._lease.tick(now):
            why = f"no sign of life from {link.host} for {SILENCE_S:.0f} s"
            self._act(self._supervisor.host_lost(link.host, now, why))
        self._next_lease.move(self._lease.deadline)

    def _pass_on_answers(self) -> None:
        self._monitor.tick(time.monotonic())
        self._report()

    def _report(self) -> None:
        self._reports.tick(time.monotonic())
        self._next_report.move(self._reports.deadline)

    def _job(self) -> dict[str, Any]:
        """The description of the job for programs that ask."""
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

    def _receive(self, link: AgentLink, message: messages.FromAgent) -> None:
        match message:
            case messages.Answer():
                self._pass_on_answers()
            case messages.Signalled(signum):
                self._take_signal(signum, link.host)
            case messages.Stdout(rank, data):
                self._show(self._own(link, rank), Stream.STDOUT, data)
            case messages.Stderr(rank, data):
                self._show(self._own(link, rank), Stream.STDERR, data)
            case _:
                self._note(link, self._own(link, message.rank), message)

    def _own(self, link: AgentLink, rank: int) -> int:
        if rank not in self._ranks.get(link.host, ()):  # a host without ranks has an agent, too
            raise FrameError(f"rank {rank} is not one of its own")
        return rank

    def _note(self, link: AgentLink, rank: int, message: messages.OfRank) -> None:
        now = time.monotonic()
        match message:
            case messages.Started(_, pid):
                link.pids[rank] = pid
                self._screen.name(rank, pid)
                self._supervisor.started(rank)
                self._say(f"rank {rank} on {link.host} is process {pid}")
            case messages.Failed(_, reason):
                self._say(f"rank {rank} on {link.host} could not be started: {reason}")
                self._input.left(rank)
                self._act(self._supervisor.not_started(rank, reason, now))
            case messages.Stopped(_, pid):
                self._screen.message(
                    f"hvdrun: rank {rank} on {link.host}, process {pid}, is stopped (SIGSTOP, a debugger); "
                    "ranks that need it wait until it goes on (SIGCONT)"
                )
            case messages.Taken(_, None):
                self._input.left(rank)
            case messages.Taken(_, int(nbytes)):
                self._input.taken(rank, nbytes)
            case messages.Found(_, finding):
                self._reports.found(link, rank, finding)
                self._report()
            case messages.Box():
                self._keep(link, message)
            case messages.Exited(_, pid, code):
                ended = link.clock.translate(message.time)
                link.pids.pop(rank, None)
                self._input.left(rank)
                self._screen.end(rank)
                self._say(f"rank {rank} on {link.host} ended with code {code}")
                self._times.ended(rank, message.spent, ended, now)
                if message.is_alone:
                    self._alone.add(rank)
                how = message.is_oom, message.ended_by, message.agent, message.last
                exit = Exit(rank, pid, code, ended, link.clock.uncertain_s, *how)
                self._act(self._supervisor.exited(exit, now))

    def _send_input(self, rank: int, data: bytes) -> None:
        self._link_of[rank].send(messages.Input(rank, data))
        if not data:
            self._screen.asks = None

    def _show_line(self, link: AgentLink, line: str) -> None:
        self._screen.message(f"hvdrun: {link.host}: {line}")

    def _lose(self, link: AgentLink) -> None:
        if link.host in self._links:
            self._act(self._supervisor.agent_ended(link.host, time.monotonic(), self._why_gone(link)))
            self._pass_on_answers()

    def _why_gone(self, link: AgentLink) -> str:
        if self._supervisor.phase is Phase.CLOSING:
            return ""  # it was to end
        return link.explain() if link.is_remote or link.problem else _AGENT_DIED

    def _show(self, rank: int, stream: Stream, data: bytes) -> None:
        self._screen.show(rank, stream, data)
        if self._logs:
            self._logs.write(rank, stream, data)
            self._warn_of_logs(self._logs)

    def _keep(self, link: AgentLink, message: messages.Box) -> None:
        if self._logs:
            self._logs.keep_box(message.rank, json.dumps({"host": link.host, **message._asdict()}).encode())
            self._warn_of_logs(self._logs)

    def _warn_of_logs(self, logs: Logs) -> None:
        if logs.problem and not self._warned_of_logs:
            self._warned_of_logs = True
            self._screen.message(f"hvdrun: {logs.problem}; the ranks go on without it")

    def _take_signals(self, signals: int) -> None:
        for signum in os.read(signals, 64):
            if signum == signal.SIGTSTP:
                self._lease.suspend(time.monotonic())
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                self._take_signal(signum)

    def _take_signal(self, signum: int, host: str = "") -> None:
        """Acts on a signal to hvdrun, here or on another ``host`` of the job."""
        if signum in ANNOUNCING:
            for link in self._links.values():
                link.send(messages.Signal(signum, everyone=False))
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
                    link.send(messages.Signal(action.signum, everyone=True))
                elif isinstance(action, Close):
                    link.send(messages.End(action.patience_s, action.grace_s))
            if isinstance(action, Close):  # all ranks have ended, so nothing can change the exit code
                self._conclude()
        self._next_phase.move(self._supervisor.deadline)

    def _conclude(self) -> None:
        for link in self._links.values():
            link.way.conclude(self._supervisor.exit_code)

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

    def _say(self, text: str) -> None:
        if self._is_verbose:
            self._screen.message(f"hvdrun: {text}")
