"""Finds a rank that is late step after step, so that all others wait for it.

The last rank to submit a tensor keeps the others waiting at least from the time at which the last of them was heard of.
Without it the job would have been faster by that much. The estimate is low if the others went on submitting meanwhile,
and zero if two ranks are equally late, so no rank is blamed for the delay of another.

A *step* ends when a tensor runs that has run in it already, which is once in a training step, however many gradients
and barriers that has; but it lasts a tenth of a second at least. Tensors without a name never come back; where only
those run, a step is a second. Of each step the longest wait counts, since a barrier after the gradients finds all ranks
there.

In a balanced job every rank is equally likely to be the last, so the chance that one rank is the last in k steps is
``size ** (1 - k)``. A rank is named if that is below one in half a million, where each wait for another rank takes back
five steps, and if the rank was the last in at least half of 20 or more steps. Not in all, because a rank that is short
of processor time is late only when one of its pauses falls into a batch. A rank that is late now and then, such as one
that writes checkpoints, is not named.

The observer of the group measures the waits (`hvdlite.engine.observer`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hvdlite.negotiation.delays.arrival import Arrival

_MIN_STEPS = 20
_MIN_BITS = 19  # of evidence: -log2 of the chance
_MIN_WAIT_S = 0.01
_MIN_SHARE = 0.1  # of a step
_OTHER_RANK = 5  # steps of evidence that a wait for another rank takes off
_MIN_STEP_S = 0.1  # in which Linux counts the quotas of containers: of shorter steps, only some have the pause
_NAMELESS_STEP_S = 1.0


@dataclass
class _Suspect:
    """A rank that was the last in at least half of the latest ``steps``. ``evidence`` is in steps, too."""

    rank: int
    steps: int = 0
    times: int = 0
    evidence: int = 0
    waited_s: float = 0.0
    lasted_s: float = 0.0

    def judge(self, last: int | None, waited_s: float, lasted_s: float) -> bool:
        """Counts a step in which the others waited for ``last``, or for nobody. False once `rank` is no suspect."""
        self.steps += 1
        self.lasted_s += lasted_s
        if last == self.rank:
            self.times += 1
            self.evidence += 1
            self.waited_s += waited_s
        elif last is not None:
            self.evidence -= _OTHER_RANK
        return self.evidence > 0 and 2 * self.times >= self.steps


class StragglerWatch:
    """Runs on the root of a group, and is told of each decision, with the time of a monotonic clock.

    Ranks count within the group; ``ranks`` are their numbers for what users read, and ``hosts`` their hosts' names.
    """

    def __init__(self, ranks: Sequence[int], hosts: Sequence[str]) -> None:
        self._ranks = ranks
        self._hosts = hosts
        self._waited_s = 0.0  # the longest wait of this step, and the rank that caused it
        self._last = -1
        self._began = -math.inf
        self._generation = 0
        self._ran = 0
        self._min_evidence = 1 + math.ceil(_MIN_BITS / math.log2(max(2, len(ranks))))
        self._suspect: _Suspect | None = None
        self._named: int | None = None  # the latest warning's rank, and how often it was the last
        self._named_times = 0

    def ran(self, generation: int, bits: int, arrival: Arrival | None, now: float) -> str:
        """Counts a decision to run ``bits`` of ``generation``. Returns a warning, or an empty text."""
        if arrival is not None:
            _, _, last_rank, _, late_s = arrival
            if late_s > self._waited_s:
                self._waited_s = late_s
                self._last = last_rank
        if generation != self._generation:
            self._generation = generation
            self._ran = 0
        elif (bits & self._ran or not bits) and now - self._began >= (_MIN_STEP_S if bits else _NAMELESS_STEP_S):
            self._ran = bits
            return self._end_step(now)
        self._ran |= bits
        return ""

    def _end_step(self, now: float) -> str:
        waited_s, lasted_s = self._waited_s, now - self._began
        self._waited_s = 0.0
        self._began = now
        last = self._last if waited_s >= max(_MIN_WAIT_S, _MIN_SHARE * lasted_s) else None
        if self._suspect is not None and self._suspect.judge(last, waited_s, lasted_s):
            return self._verdict(self._suspect)
        self._suspect = None
        if last is not None:
            self._suspect = _Suspect(last)
            self._suspect.judge(last, waited_s, lasted_s)
        return ""

    def _verdict(self, suspect: _Suspect) -> str:
        needed = 2 * self._named_times if suspect.rank == self._named else self._min_evidence
        if suspect.steps < _MIN_STEPS or suspect.evidence < needed:
            return ""
        self._named, self._named_times = suspect.rank, suspect.times
        rank, host = self._ranks[suspect.rank], self._hosts[suspect.rank]
        return (
            f"all others wait for rank {rank} on {host}: "
            f"in {suspect.times} of the last {suspect.steps} steps they did, "
            f"for {suspect.waited_s / suspect.times * 1000:.0f} ms on average, "
            f"{suspect.waited_s / suspect.lasted_s:.0%} of the time. Look at the load and the limits of that host "
            f"(hvdrun doctor -H {host}), and at what this rank does and others do not."
        )
