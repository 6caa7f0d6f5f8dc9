"""Finds a rank that is late in step after step, so that all other ranks wait for it.

*Waits.* The last rank to submit a tensor has kept the others waiting at least since the latest news of another rank.
Without its delay the job would have been faster by this time. The estimate is low if the other ranks went on submitting
meanwhile, and zero if two ranks are equally late, so no rank is blamed for the delay of another.

*Steps.* A step begins when a tensor runs that has already run in the current step. That happens once in a training
step, however many gradients and barriers it has. The longest wait of a step counts, because all ranks reach a barrier
after the gradients at the same time. The *first gradient* of a step follows its longest pause, in which no rank submits
anything, because all ranks read data or compute the forward pass. The time by which the last rank is late there was
lost *before the first gradient*, and the rest of its wait *between gradients*. If several pauses are about equally
long, as when there is little to compute, the pause with the latest rank counts.

*Rounds.* The steps of a tenth of a second or more are judged together, as one round: Linux enforces the CPU quotas of
containers in periods of that length, so only some of several shorter steps would have the pause. Tensors without a name
never recur; if only those run, a round is a second.

*Late ranks.* A rank is late in a round if the other ranks waited for it for a tenth of the round, and unusually long.
The usual waits are the waits for other ranks, in past rounds whose last rank was not the last rank of the round before.
A wait is unusually long if it exceeds their median by more than five times their median absolute deviation.

*Verdicts.* In a balanced job every rank is equally likely to be the last, so the chance that one rank is the last in k
rounds is ``size ** (1 - k)``. Each wait for another rank takes back up to five rounds of evidence. A rank is named if
the chance is below one in 240. The limit falls with each rank that looked slow and then did not, so that a noisy job
names few ranks, however long it lasts. A verdict also takes at least six rounds and two and a half seconds, and the
rank must be late in at least half of the latest twenty rounds. Not in all, because a rank that is short of CPU time is
late only when one of its pauses falls into a batch. A rank that is late only now and then, such as a rank that writes
checkpoints, is not named.

The observer of the group measures the waits (`hvdlite.engine.observer`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

from hvdlite.negotiation.delays.arrival import Arrival

_MIN_ROUNDS: Final = 6
_MIN_S: Final = 2.5
_AGAIN_S: Final = 30.0  # the same rank is named again after this time at the earliest
_MIN_BITS: Final = 7.9  # of evidence: -log2 of the chance
_MOST_BITS: Final = 19
_QUIET_ROUNDS: Final = 20  # so many rounds without a late rank make up for one rank that looked slow
_MIN_WAIT_S: Final = 0.01
_MIN_SHARE: Final = 0.1  # of the time of a round
_OTHER_RANK: Final = 5.0  # rounds of evidence that a wait for another rank takes back
_ROUND_S: Final = 0.1
_NAMELESS_ROUND_S: Final = 1.0
_PAST: Final = 64  # rounds
_RECENT: Final = 20
_NOISY: Final = 1 / 8  # share of the past rounds; with fewer waits for other ranks, no wait is usual
_DEVIATIONS: Final = 5
_MOSTLY: Final = 0.7
_PHASES: Final = {
    "before": "before the first gradient",
    "between": "between gradients",
    "both": "before the first gradient and between gradients",
}


class Straggler(NamedTuple):
    """A verdict that names a rank: what is ``said`` to the user, and the facts in it.

    Of each of so many ``steps`` the others have waited ``late_s`` for it, which is a ``share`` of the last ``since_s``;
    before that ``past_s``, None if unknown.
    """

    said: str
    rank: int
    host: str
    steps: int
    late_s: float
    past_s: float | None
    share: float
    since_s: float
    phase: str

    @property
    def text(self) -> str:
        """A text for the user, with advice."""
        return (
            f"{self.said}. Look at the load and the limits of that host (hvdrun doctor -H {self.host}), "
            "and at what this rank does and others do not."
        )


class Unreported(NamedTuple):
    """Decisions without waits and pauses that the watch has not got, in so many ``steps``, ``until`` a time."""

    steps: int
    until: float


ALL_REPORTED: Final = Unreported(0, -math.inf)


class _Wait(NamedTuple):
    """How long other ranks waited for a rank in a round, and how long of that before the first gradient."""

    waited_s: float = 0.0
    before_s: float = 0.0


_Waits = dict[int, _Wait]


class _Round(NamedTuple):
    """A past round. ``has_new_last``: its last rank was not the last rank of the latest earlier round with waits."""

    waits: _Waits
    has_new_last: bool


@dataclass
class _Suspect:
    """A rank that is late again and again, since the time ``since``.

    ``evidence`` is in rounds. ``past_s`` is the median wait for the rank in earlier rounds, or None if there are few.
    """

    rank: int
    since: float
    past_s: float | None
    rounds: int = 0
    steps: int = 0
    times: int = 0
    evidence: float = 0.0
    waited_s: float = 0.0
    before_s: float = 0.0
    lasted_s: float = 0.0
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def judge(self, waits: _Waits, is_late: bool, other_s: float, steps: int, lasted_s: float) -> bool:
        """Counts a round. False if this rank does not look slow any more.

        ``is_late``: this rank was late. ``other_s``: the other ranks waited for one other rank for so long.
        """
        own = waits.get(self.rank, _Wait())
        self.rounds += 1
        self.steps += steps
        self.lasted_s += lasted_s
        self.waited_s += own.waited_s
        self.before_s += own.before_s
        self.times += is_late
        self.evidence += is_late
        self.recent.append(is_late)
        if other_s > own.waited_s:
            usually_s = self.waited_s / max(1, self.times)
            self.evidence -= _OTHER_RANK * min(1.0, other_s / usually_s if usually_s else 1.0)
        return self.evidence > 0 and 2 * sum(self.recent) >= len(self.recent)


class StragglerWatch:
    """The watch of the root of a group, which calls `ran` for each decision.

    ``ranks`` and ``hosts`` are the numbers in the job and the hosts of the group's ranks.
    """

    def __init__(self, ranks: Sequence[int], hosts: Sequence[str]) -> None:
        self._ranks = ranks
        self._hosts = hosts
        self._generation = 0
        self._ran = 0  # the bits of this step so far
        self._waited_s = 0.0  # the longest wait of this step, and the rank that caused it
        self._last = -1
        self._decided_at = -math.inf
        self._pause_s = 0.0  # the longest pause of this step, from a decision until some rank submitted more
        self._spread_s = 0.0  # from the first to the last rank after this pause
        self._began = -math.inf  # when this round began; its steps and waits follow
        self._steps = 0
        self._waits: _Waits = {}
        self._past: deque[_Round] = deque(maxlen=_PAST)
        self._late: int | None = None  # the rank for which others waited most in the latest round with waits
        self._suspect: _Suspect | None = None
        self._cleared = 0.0  # how many ranks looked slow and then did not
        self._named: int | None = None  # the rank named last, how often it was late by then, and when it was named
        self._named_times, self._named_at = 0, 0.0

    def ran(
        self, generation: int, bits: int, arrival: Arrival | None, now: float, unreported: Unreported = ALL_REPORTED
    ) -> Straggler | None:
        """Counts a decision, at ``now`` on the monotonic clock, to run ``bits``, which have no barrier.

        ``unreported`` came before it. Returns the rank to name, if any.
        """
        named = None
        self._steps += unreported.steps
        self._decided_at = max(self._decided_at, unreported.until)
        if generation != self._generation:
            self._generation = generation
            self._ran = 0
        elif bits & self._ran if bits else now - self._began >= _NAMELESS_ROUND_S:
            named = self._end_step(now)
            self._ran = 0
            self._pause_s, self._spread_s = 0.0, 0.0
        self._ran |= bits
        if arrival is not None:
            _, first_at, last, last_at, waited_s = arrival
            if last >= 0 and (pause_s := first_at - self._decided_at) >= self._pause_s / 2:
                spread_s = last_at - first_at
                self._spread_s = spread_s if pause_s > 2 * self._pause_s else max(spread_s, self._spread_s)
                self._pause_s = max(pause_s, self._pause_s)
            if waited_s > self._waited_s:
                self._waited_s, self._last = waited_s, last
        self._decided_at = now
        return named

    def _end_step(self, now: float) -> Straggler | None:
        waited_s, self._waited_s = self._waited_s, 0.0
        self._steps += 1
        if waited_s >= _MIN_WAIT_S:
            before = self._waits.get(self._last, _Wait())
            in_step = min(waited_s, max(0.0, self._spread_s))
            self._waits[self._last] = _Wait(before.waited_s + waited_s, before.before_s + in_step)
        if now - self._began < _ROUND_S:
            return None
        lasted_s, steps, waits = now - self._began, self._steps, self._waits
        self._began, self._steps, self._waits = now, 0, {}
        if not math.isfinite(lasted_s):  # the first round, whose beginning is unknown
            return None
        last = max(waits, key=lambda rank: waits[rank].waited_s, default=None)
        named = self._end_round(waits, last, steps, lasted_s, now)
        self._past.append(_Round(waits, last not in (None, self._late)))
        self._late = self._late if last is None else last
        return named

    def _end_round(self, waits: _Waits, last: int | None, steps: int, lasted_s: float, now: float) -> Straggler | None:
        if last is not None and waits[last].waited_s < _MIN_SHARE * lasted_s:
            last = None
        suspect = self._suspect
        if suspect is not None:
            other_s = waits[last].waited_s if last is not None and last != suspect.rank else 0.0
            if suspect.judge(waits, last == suspect.rank and self._is_unusual(waits, last), other_s, steps, lasted_s):
                return self._verdict(suspect, now)
            self._suspect = None
            self._cleared += 1
        if last is None:
            self._cleared = max(0.0, self._cleared - 1 / _QUIET_ROUNDS)
        elif self._is_unusual(waits, last):
            self._suspect = _Suspect(last, now - lasted_s, self._past_of(last))
            self._suspect.judge(waits, True, 0.0, steps, lasted_s)
        return None

    def _past_of(self, rank: int) -> float | None:
        """Returns the median wait for ``rank`` in the past rounds, or None if there are too few."""
        late = [past.waits.get(rank, _Wait()).waited_s for past in self._past]
        return median(late) if len(late) >= _MIN_ROUNDS else None

    def _is_unusual(self, waits: _Waits, rank: int) -> bool:
        """True if the wait for ``rank`` was unusually long; see the top of this file."""
        late = [max(others) for past in self._past if past.has_new_last and (others := _others(past.waits, rank))]
        if len(late) < _NOISY * _PAST:
            return True
        usual_s = median(late)
        return waits[rank].waited_s > usual_s + _DEVIATIONS * median(abs(each - usual_s) for each in late)

    def _verdict(self, suspect: _Suspect, now: float) -> Straggler | None:
        bits = min(_MOST_BITS, _MIN_BITS + 2 * math.log2(1 + self._cleared))
        needed = 1 + math.ceil(bits / math.log2(max(2, len(self._ranks))))
        if suspect.rank == self._named:
            if now - self._named_at < _AGAIN_S:
                return None
            needed = max(needed, 2 * max(self._named_times, _RECENT))
        if suspect.rounds < _MIN_ROUNDS or now - suspect.since < _MIN_S or suspect.evidence < needed:
            return None
        if suspect.waited_s < _MIN_SHARE * suspect.lasted_s:
            return None
        self._named, self._named_times, self._named_at = suspect.rank, suspect.times, now
        return _describe(suspect, self._ranks[suspect.rank], self._hosts[suspect.rank], now)


def _others(waits: _Waits, rank: int) -> list[float]:
    return [wait.waited_s for other, wait in waits.items() if other != rank]


def _describe(suspect: _Suspect, rank: int, host: str, now: float) -> Straggler:
    late_s, share = suspect.waited_s / suspect.steps, suspect.waited_s / suspect.lasted_s
    past_s = None if suspect.past_s is None else suspect.past_s * suspect.rounds / suspect.steps
    past = "" if past_s is None else f", before that {1000 * past_s:.0f} ms"
    before = suspect.before_s / suspect.waited_s
    phase = "before" if before >= _MOSTLY else "between" if before <= 1 - _MOSTLY else "both"
    said = (
        f"rank {rank} on {host} makes all others wait, {1000 * late_s:.0f} ms of each step ({share:.0%} of the time, "
        f"for {now - suspect.since:.0f} s{past}), {_PHASES[phase]}"
    )
    return Straggler(said, rank, host, suspect.steps, late_s, past_s, share, now - suspect.since, phase)
