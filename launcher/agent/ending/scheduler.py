"""Which signals of a scheduler have reached the ranks of this host, so that each of them gets each signal once.

A scheduler may send a signal to every process of a job, or only to the process that it started, the guard. Signals
for several processes do not arrive at the same time, so what one of them has got is passed on only after a while.
Times are monotonic.
"""

from __future__ import annotations

import signal
from math import inf
from typing import Final

_APART_S: Final = 0.5  # between the arrivals of one signal at hvdrun, at the guard and here


class Scheduler:
    """The signals of the scheduler that runs this agent."""

    def __init__(self) -> None:
        self._sent: dict[int, float] = {}  # when the scheduler, or this agent, last sent a signal to all here
        self._of_guard: dict[int, float] = {}  # when to pass on a signal that only the guard may have got
        self._terminate_at: float | None = None

    @property
    def due(self) -> float | None:
        """When to ask for `missed` signals, and whether `must_terminate`; None if there is nothing to wait for."""
        times = [*self._of_guard.values()] + ([] if self._terminate_at is None else [self._terminate_at])
        return min(times, default=None)

    def sent(self, signum: int, now: float) -> None:
        """All processes here have got the signal."""
        self._sent[signum] = now

    def has_sent(self, signum: int) -> bool:
        """True if all processes here have ever got the signal."""
        return signum in self._sent

    def sent_to_guard(self, signum: int, now: float) -> None:
        """The guard has got the signal."""
        self._of_guard.setdefault(signum, now + _APART_S)

    def missed(self, now: float) -> list[int]:
        """The signals that by now only the guard has got, each of them once."""
        due = [signum for signum, at in self._of_guard.items() if now >= at]
        arrived = {signum: self._of_guard.pop(signum) - _APART_S for signum in due}
        return [signum for signum in due if self._sent.get(signum, -inf) < arrived[signum] - _APART_S]

    def terminate(self, now: float) -> None:
        """The ranks are to get SIGTERM, if not from the scheduler then from the agent."""
        self._terminate_at = now + _APART_S

    def must_terminate(self, now: float) -> bool:
        """True, once, if the ranks are to get SIGTERM, and the scheduler does not send it."""
        if signal.SIGTERM in self._sent:
            self._terminate_at = None
        if self._terminate_at is None or now < self._terminate_at:
            return False
        self._terminate_at = None
        return True

    def terminates_at(self, now: float) -> float:
        """When the ranks have got SIGTERM, or will get it, for from now on they are to."""
        known = [times[signal.SIGTERM] for times in (self._sent, self._of_guard) if signal.SIGTERM in times]
        if known:
            return max(known)
        if self._terminate_at is None:
            self.terminate(now)
        return self._terminate_at or now
