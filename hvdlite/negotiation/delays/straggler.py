"""Finds a rank that is late step after step, so that all others wait for it.

The last rank to submit a tensor keeps the others waiting at least from the time at which the last of their news came.
Without it the job would have been faster by that much. The estimate is low if the others went on submitting meanwhile,
and zero if two ranks are equally late, so no rank is blamed for the delay of another.

A *step* begins when a tensor runs that has run already since the last one began, which is once in a training step,
however many gradients and barriers that has. Of each step the longest wait counts, since a barrier after the gradients
finds all ranks there. After the longest pause in which no rank submits anything comes the *first gradient*:
all read data or computed forward. What the last rank is late by there it lost *before the first gradient*, and the rest
*between gradients*. Of pauses that are much alike, as where little is computed, the one with the latest rank counts.

Steps are judged together for a tenth of a second at least, as one *round*: Linux counts the quotas of containers in
such periods, so of shorter steps only some have the pause. Tensors without a name never come back; where only those
run, a round is a second.

A rank is late in a round if the others waited for it for a tenth of the time, and longer than they are usually late
themselves, when one and then another is: than the median of that by five times its median absolute deviation. In a
balanced job every rank is equally likely to be the last, so the chance that one rank is the last in k rounds is ``size
** (1 - k)``, where each wait for another rank takes back up to five rounds. A rank is named if the chance is below one
in 240, and less for each rank that looked slow before and then did not: so that however long a noisy job lasts, few are
named in all. That must be six rounds and two and a half seconds or more, and at least half of the latest twenty. Not
all, because a rank that is short of processor time is late only when one of its pauses falls into a batch. A rank that
is late now and then, such as one that writes checkpoints, is not named.

The observer of the group measures the waits (`hvdlite.engine.observer`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, NamedTuple

from hvdlite.negotiation.delays.arrival import Arrival

_MIN_ROUNDS: Final = 6
_MIN_S: Final = 2.5
_AGAIN_S: Final = 30.0  # until the same rank is named again, at the earliest
_MIN_BITS: Final = 7.9  # of evidence: -log2 of the chance
_MOST_BITS: Final = 19
_QUIET_ROUNDS: Final = 20  # after so many, one that looked slow before is forgotten
_MIN_WAIT_S: Final = 0.01
_MIN_SHARE: Final = 0.1  # of a round
_OTHER_RANK: Final = 5.0  # rounds of evidence that a wait for another rank takes off
_ROUND_S: Final = 0.1
_NAMELESS_ROUND_S: Final = 1.0
_PAST: Final = 64  # rounds
_RECENT: Final = 20
_NOISY: Final = 1 / 8  # of the past rounds: if others were late as often, they usually are
_DEVIATIONS: Final = 5
_MOSTLY: Final = 0.7
_PHASES: Final = {
    "before": "before the first gradient",
    "between": "between gradients",
    "both": "before the first gradient and between gradients",
}


class Straggler(NamedTuple):
    """A rank that is named. The facts are those of the text."""

    text: str
    facts: dict[str, Any]


class _Wait(NamedTuple):
    """For how long others waited for a rank in a round, and which part of that was before the first gradient."""

    waited_s: float = 0.0
    before_s: float = 0.0


_Waits = dict[int, _Wait]


class _Round(NamedTuple):
    """What is kept of a round. ``is_turn``: another rank was the last than in the latest round that had waits."""

    waits: _Waits
    is_turn: bool


@dataclass
class _Suspect:
    """A rank that is late again and again. ``evidence`` is in rounds; ``past_s`` is how late it was before."""

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
        """Counts a round, in which others waited for a rank other than this for ``other_s``. False: not slow any more.

        ``is_late`` says whether this rank was late.
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
    """Runs on the root of a group, which calls `ran` for each decision, with the time of a monotonic clock.

    ``ranks`` and ``hosts`` are the numbers and the hosts of the group's ranks, as users know them.
    """

    def __init__(self, ranks: Sequence[int], hosts: Sequence[str]) -> None:
        self._ranks = ranks
        self._hosts = hosts
        self._generation = 0
        self._ran = 0  # the tensors of this step so far
        self._waited_s = 0.0  # the longest wait of this step, and the rank that caused it
        self._last = -1
        self._decided_at = -math.inf
        self._pause_s = 0.0  # the longest of this step, from a decision until some rank submitted more
        self._spread_s = 0.0  # between the ranks after such a pause
        self._began = -math.inf  # this round, with its steps and waits
        self._steps = 0
        self._waits: _Waits = {}
        self._past: deque[_Round] = deque(maxlen=_PAST)
        self._late: int | None = None  # the rank for which others waited most in the latest round with waits
        self._suspect: _Suspect | None = None
        self._cleared = 0.0  # how many looked slow and then did not
        self._named: int | None = None  # the latest that was named, how often it was late by then, and when
        self._named_times, self._named_at = 0, 0.0

    def ran(self, generation: int, bits: int, arrival: Arrival | None, now: float) -> Straggler | None:
        """Counts a decision to run ``bits`` of ``generation``. Returns who is to be named."""
        named = None
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
        if not math.isfinite(lasted_s):  # the first, which began nobody knows when
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
        """How late ``rank`` was in a round of the past; None if that was too short to say."""
        late = [past.waits.get(rank, _Wait()).waited_s for past in self._past]
        return median(late) if len(late) >= _MIN_ROUNDS else None

    def _is_unusual(self, waits: _Waits, rank: int) -> bool:
        """True if ``rank`` was later than others usually are, when they are in their turns."""
        late = [max(others) for past in self._past if past.is_turn and (others := _others(past.waits, rank))]
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
    hint = (
        f"Look at the load and the limits of that host (hvdrun doctor -H {host}), "
        "and at what this rank does and others do not."
    )
    facts = {
        "said": said,
        "rank": rank,
        "host": host,
        "steps": suspect.steps,
        "late_s": late_s,
        "past_s": past_s,
        "share": share,
        "since_s": now - suspect.since,
        "phase": phase,
    }
    return Straggler(f"{said}. {hint}", facts)
