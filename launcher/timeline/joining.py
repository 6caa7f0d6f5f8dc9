"""Joins the timelines of ranks that each wrote a file by the clock of its own host. Pure.

What two hosts do in one batch bounds the offset of their clocks, as a question and its answer do. A rank knows a
decision of the group's first rank only after it was made, and it was made only after all ranks had sent what they have.
Where bytes go from each rank to each, no rank is done before all have begun. So each batch gives a lower and an upper
bound. The closest bounds of each minute count, as clocks drift. Without any bounds, the wall clocks of the hosts count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

from .trace import Event, RankTrace

_WINDOW_US: Final = 60e6
_ALL_TO_ALL: Final = frozenset({"ALLREDUCE", "ALLGATHER", "BARRIER", "REDUCESCATTER"})

Bounds = tuple[float, float]


class Clock:
    """What is to be added to the times of a clock, in µs, which depends on the time."""

    def __init__(self, guess: float, windows: dict[int, Bounds]) -> None:
        """``windows`` are the bounds by the number of the window; ``guess`` counts where there are none."""
        self._begins = sorted(windows)
        bounds = [windows[number] for number in self._begins]
        first = _between(*bounds[0], guess) if bounds else guess
        self._shifts = [first]
        for low, high in bounds:
            self._shifts.append(_nearest(self._shifts[-1], low, high))

    def shift(self, at: float) -> float:
        return self._shifts[bisect_right(self._begins, int(at // _WINDOW_US))]


def _nearest(shift: float, low: float, high: float) -> float:
    """Returns what within the bounds is nearest to ``shift``; their middle if the clocks have drifted."""
    return (low + high) / 2 if low > high else min(max(shift, low), high)


def _between(low: float, high: float, guess: float) -> float:
    return (low + high) / 2 if -inf < low and high < inf else _nearest(guess, low, high)


def join(traces: Sequence[RankTrace]) -> list[Event]:
    """Returns the events of all ranks by the clock of the first one's host, in the order of time."""
    first = traces[0]
    ours = [trace for trace in traces if trace.clock == first.clock]
    joined: list[Event] = []
    clocks: dict[str, Clock] = {}
    for trace in traces:
        if trace.clock not in clocks:
            theirs = [other for other in traces if other.clock == trace.clock]
            guess = (first.clock_us - first.epoch_us) - (trace.clock_us - trace.epoch_us)
            windows = _windows(ours, theirs) if trace.clock != first.clock else {}
            clocks[trace.clock] = Clock(guess if trace.clock != first.clock else 0.0, windows)
        for event in trace.events:
            shift = clocks[trace.clock].shift(event["ts"]) if "ts" in event else 0.0
            joined.append({**event, "ts": round(event["ts"] + shift, 3)} if shift else event)
    return sorted(joined, key=lambda event: event.get("ts", -inf))


def _windows(ours: Sequence[RankTrace], theirs: Sequence[RankTrace]) -> dict[int, Bounds]:
    found: dict[int, Bounds] = {}
    for one in ours:
        for other in theirs:
            for at, low, high in _bounds(one, other):
                number = int(at // _WINDOW_US)
                known = found.get(number, (-inf, inf))
                found[number] = max(known[0], low), min(known[1], high)
    return found


def _bounds(one: RankTrace, other: RankTrace) -> Iterator[tuple[float, float, float]]:
    """Of each batch that both ran, yields a time on ``other``'s clock and the bounds of the offset to ``one``'s."""
    begins, others_begins = _begins_of_arrows(one), _begins_of_arrows(other)
    for key, theirs in other.batches.items():
        ours = one.batches.get(key)
        if ours is None or not {"wait", "move"} <= ours.spans.keys() & theirs.spans.keys():
            continue
        low, high = -inf, inf
        if ours.name in _ALL_TO_ALL:
            low = ours.spans["move"][0] - theirs.spans["move"][1]
            high = ours.spans["move"][1] - theirs.spans["move"][0]
        if key in begins:
            low = max(low, begins[key] - theirs.spans["wait"][0])
            if "queue" in theirs.spans:
                high = min(high, ours.spans["wait"][0] - theirs.spans["queue"][1])
        elif key in others_begins:
            high = min(high, ours.spans["wait"][0] - others_begins[key])
            if "queue" in ours.spans:
                low = max(low, ours.spans["queue"][1] - theirs.spans["wait"][0])
        yield theirs.spans["move"][0], low, high


def _begins_of_arrows(trace: RankTrace) -> dict[tuple[int, int], float]:
    """When what leads to a batch began on the first rank of its process set, by set and batch."""
    arrows = ((int(event["id"], 16), event["ts"]) for event in trace.events if event["ph"] == "s")
    return {(number >> 52, number >> 20 & 0xFFFFFFFF): at for number, at in arrows}
