"""Decides how hvdrun reacts to ends of ranks, lost agents and signals. It does no I/O and reads no clock.

A job is in one of six phases, and goes on from each of the first four to CLOSING when all ranks have ended::

    RUNNING ──Ctrl-C──> INTERRUPTING ──grace over──> TERMINATING ──grace over──> KILLING
       └──────────rank fails, another signal─────────────^
                                                                        2nd signal: KILLING
    CLOSING ──all agents have ended, or time is up──> FINISHED

A policy decides whether the failure of a rank ends the job. The first failure in time that does decides the exit code;
later ones are its consequences. The report of an earlier failure may arrive later: then its time decides, or the rank
that was reported first names the culprit. Nothing that ranks do after a signal to hvdrun is a failure.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from hvdlite.host.processes import signal_name

INTERRUPT_GRACE_S: Final = 5.0  # between SIGINT and SIGTERM
GRACE_S: Final = 5.0  # between SIGTERM and SIGKILL, if the user wants no other
START_S: Final = 30.0  # for an agent to start its workers
LAST_WAIT_S: Final = 2.0  # for processes to vanish after SIGKILL


class Phase(Enum):
    """The phase of the job."""

    RUNNING = auto()
    INTERRUPTING = auto()
    TERMINATING = auto()
    KILLING = auto()
    CLOSING = auto()
    FINISHED = auto()


class Signal(NamedTuple):
    """Action: send ``signum`` to every process of every worker."""

    signum: int


class Close(NamedTuple):
    """Action: have every agent end what its workers left behind: SIGTERM after ``patience_s``, then SIGKILL."""

    patience_s: float = 0.0
    grace_s: float = GRACE_S


class Destroy(NamedTuple):
    """Action: kill the agent of ``host`` and whatever is known of its workers; it does not answer."""

    host: str


Action = Signal | Close | Destroy


class Culprit(NamedTuple):
    """The rank because of which another one failed, in the other's words; ``fate`` is empty if it merely left."""

    rank: int
    host: str
    fate: str


class Exit(NamedTuple):
    """Rank ``rank``, process ``pid``, ended at ``time``, which may be ``uncertain_s`` off either way.

    A negative ``code`` is a signal, that of the kernel if ``is_oom``. ``ended_by`` is the rank because of which the
    session of this one had ended, and the fate of that rank. ``agent`` describes an agent that had given up and was
    ending its ranks. ``last`` are lines about what the rank did before.
    """

    rank: int
    pid: int
    code: int
    time: float
    uncertain_s: float = 0.0
    is_oom: bool = False
    ended_by: tuple[int, str] | None = None
    agent: str = ""
    last: tuple[str, ...] = ()


class Failure(NamedTuple):
    """The reason of a failed job. ``code`` is as in a shell; ``signum`` is None unless a signal ended the rank."""

    rank: int
    host: str
    pid: int | None
    code: int
    signum: int | None
    time: float
    reason: str
    is_oom: bool = False  # the OOM killer ended it
    uncertain_s: float = 0.0  # how far off ``time`` may be either way
    culprit: Culprit | None = None  # another rank
    last: tuple[str, ...] = ()  # what the rank did before

    @property
    def to_look_at(self) -> int:
        """The rank whose output may explain more: the culprit if its fate is known, else the one that failed."""
        return self.culprit.rank if self.culprit and self.culprit.fate else self.rank

    @property
    def is_by_signal(self) -> bool:
        """True if a signal ended the rank, or a process below it, as its code says."""
        return self.code > 128

    def is_surely_before(self, other: Failure) -> bool:
        return self.time + self.uncertain_s < other.time - other.uncertain_s


class Policy(Protocol):
    """What the failure of a rank means to the job."""

    def ends_job(self, failure: Failure, others: frozenset[int]) -> bool:
        """True if the ``others``, which have not ended, have to end because of this failure."""


class EndAll:
    """Every failure ends the job: the ranks of a job that is not elastic need each other."""

    def ends_job(self, failure: Failure, others: frozenset[int]) -> bool:
        return True


class Supervisor:
    """The state of one job. Every event takes ``now`` (monotonic, seconds) and returns the actions it calls for.

    ``grace_s`` is the time between SIGTERM and SIGKILL for ranks that have not ended by themselves.
    Invariant: a deadline is set in every phase but FINISHED, and but RUNNING once all ranks have started.
    """

    def __init__(
        self, host_by_rank: Mapping[int, str], now: float, grace_s: float = GRACE_S, policy: Policy | None = None
    ) -> None:
        self._grace_s, self._policy = grace_s, policy or EndAll()
        self._host_by_rank = dict(host_by_rank)
        self._alive = set(host_by_rank)
        self._awaited = set(host_by_rank)  # the ranks that have not started
        self._agents = set(host_by_rank.values())
        self._interrupt: int | None = None
        self.done: set[int] = set()  # the ranks that ended with code 0
        self.phase = Phase.RUNNING
        self.deadline: float | None = now + START_S
        self.failure: Failure | None = None

    @property
    def exit_code(self) -> int:
        """hvdrun's exit code: 128 + n after signal n, else the code of the first failure, else 0."""
        if self._interrupt is not None:
            return 128 + self._interrupt
        return self.failure.code if self.failure else 0

    @property
    def alive(self) -> frozenset[int]:
        """The ranks that have not ended."""
        return frozenset(self._alive)

    def started(self, rank: int) -> None:
        """Rank ``rank`` runs."""
        self._awaited.discard(rank)
        if not self._awaited and self.phase is Phase.RUNNING:
            self.deadline = None

    def exited(self, exit: Exit, now: float) -> list[Action]:
        """A rank has ended."""
        rank, pid, code, time, uncertain_s, is_oom, ended_by, agent, last = exit
        signum = -code if code < 0 else None
        shown = code if signum is None else 128 + signum
        how = f"ended with code {code}" if signum is None else f"was ended by signal {signum} ({signal_name(signum)})"
        if is_oom:
            how = "was killed by the kernel: out of memory"
        if agent:  # whatever it did then, and even if it exited with 0: it was not to end yet
            shown, signum, how = shown or 128 + signal.SIGTERM, None, f"was ended by its agent, {agent}"
        if shown == 0:
            self.done.add(rank)
        culprit, host = self._culprit(rank, ended_by), self._host_by_rank[rank]
        return self._ended(Failure(rank, host, pid, shown, signum, time, how, is_oom, uncertain_s, culprit, last), now)

    def not_started(self, rank: int, reason: str, now: float) -> list[Action]:
        """Rank ``rank`` could not be started."""
        failure = Failure(rank, self._host_by_rank[rank], None, 1, None, now, f"could not be started: {reason}")
        return self._ended(failure, now)

    def agent_ended(self, host: str, now: float, why: str = "the process that started it died") -> list[Action]:
        """The agent of ``host`` is gone, and with it the ranks that had not ended."""
        self._agents.discard(host)
        actions = self.host_lost(host, now, why)
        if not self._agents:
            self._enter(Phase.FINISHED, None)
        return actions

    def host_lost(self, host: str, now: float, why: str) -> list[Action]:
        """``host`` is silent for good; its ranks that had not ended are lost."""
        actions: list[Action] = []
        lost = [rank for rank in sorted(self._alive) if self._host_by_rank[rank] == host]
        if lost:
            actions.append(Destroy(host))
        for rank in lost:
            self._awaited.discard(rank)
            actions += self._ended(Failure(rank, host, None, 1, None, now, f"was lost: {why}"), now)
        return actions

    def interrupted(self, signum: int, now: float) -> list[Action]:
        """A signal asks hvdrun to end: the first one gracefully, the second one at once.

        Ctrl-C reaches the ranks as SIGINT, so that they can end as they do without hvdrun.
        """
        if self.phase is Phase.RUNNING:
            self._interrupt = signum
            if signum != signal.SIGINT:
                return self._terminate(now)
            self._enter(Phase.INTERRUPTING, now + INTERRUPT_GRACE_S)
            return [Signal(signal.SIGINT)]
        return self._destroy_all() if self.phase is Phase.KILLING else self._kill(now)

    def tick(self, now: float) -> list[Action]:
        """Acts on a deadline that has passed."""
        if self.deadline is None or now < self.deadline:
            return []
        if self.phase is Phase.RUNNING:
            return self.not_started(min(self._awaited), f"its host did not answer within {START_S:.0f} s", now)
        if self.phase is Phase.INTERRUPTING:
            return self._terminate(now)
        return self._kill(now) if self.phase is Phase.TERMINATING else self._destroy_all()

    def _ended(self, end: Failure, now: float) -> list[Action]:
        if end.rank not in self._alive:
            return []
        self._alive.discard(end.rank)
        actions: list[Action] = []
        if end.code != 0:
            if self.phase is Phase.RUNNING:
                if self._policy.ends_job(end, self.alive):
                    self.failure = end
                    actions += self._terminate(now)
            elif self.failure is not None and self._is_rather_the_cause(end, self.failure):
                self.failure = end
        if not self._alive:
            # A shell that dies of Ctrl-C at once may leave a program that is still handling it.
            patience_s = GRACE_S if self.phase is Phase.INTERRUPTING else 0.0
            self._enter(Phase.CLOSING, now + patience_s + self._grace_s + LAST_WAIT_S)
            return [*(action for action in actions if isinstance(action, Destroy)), Close(patience_s, self._grace_s)]
        return actions

    def _culprit(self, rank: int, ended_by: tuple[int, str] | None) -> Culprit | None:
        if ended_by is None or ended_by[0] == rank or ended_by[0] not in self._host_by_rank:
            return None
        return Culprit(ended_by[0], self._host_by_rank[ended_by[0]], ended_by[1])

    def _is_rather_the_cause(self, end: Failure, known: Failure) -> bool:
        if (end.culprit is None) == (known.culprit is None):
            return end.is_surely_before(known)
        # What ends because of the first failure's SIGTERM, or SIGKILL, is no cause. Silence of a rank says less than
        # those who lost it, and has no exit code.
        is_own = end.signum != signal.SIGTERM and (end.signum != signal.SIGKILL or self.phase is not Phase.KILLING)
        is_seen = end.pid is not None
        return known.culprit is not None and known.culprit.rank == end.rank and is_own and is_seen

    def _terminate(self, now: float) -> list[Action]:
        self._enter(Phase.TERMINATING, now + self._grace_s)
        return [Signal(signal.SIGTERM)]

    def _kill(self, now: float) -> list[Action]:
        self._enter(Phase.KILLING, now + LAST_WAIT_S)
        return [Signal(signal.SIGKILL)]

    def _destroy_all(self) -> list[Action]:
        self._enter(Phase.FINISHED, None)
        return [Destroy(host) for host in sorted(self._agents)]

    def _enter(self, phase: Phase, deadline: float | None) -> None:
        self.phase, self.deadline = phase, deadline
