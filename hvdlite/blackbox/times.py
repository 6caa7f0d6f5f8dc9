"""Where the time of a rank went: computing, waiting for ranks or bytes, loading data, starting and ending.

A rank starts until `init` has returned, and ends from `shutdown` on. In between it waits for other ranks until its
batch is agreed, waits for the bytes of an agreed batch, or loads data; the rest is computing.

The observer adds up the waits as they happen, and `add_up` does so for recorded batches. `spent` makes seconds of each
class from these sums, and `divide` divides a time by them. The last line of a job, ``hvdrun top`` and ``hvdrun
timeline`` show the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from hvdlite.blackbox.format import Record
from hvdlite.metrics.table import (
    BATCHES,
    EARLIER_S,
    JOINED_AT,
    LATEST_RANK,
    LATEST_RANK_S,
    LEFT_AT,
    LOADING_S,
    MOVED_S,
    NBYTES,
    UNAGREED_S,
    WAITED_S,
    Quantities,
)

LEAST_S: Final = 2.0  # of a job that is worth a line
MOST_S: Final = 1e9  # longer times are capped
_LEAST_CAUSED: Final = 2 / 3  # the share of the waiting that a named rank causes: of two ranks one always causes half
_LEAST_WAITING: Final = 0.05  # the share of the time from which on a cause is named; less is chance


def add_up(batches: Iterable[Record]) -> tuple[Quantities, dict[int, list[float]]]:
    """Adds up the batches of one rank.

    Returns their sums, and by late rank the seconds of each wait for it that this rank knows of.
    """
    sums: Quantities = dict.fromkeys((BATCHES, MOVED_S, WAITED_S, UNAGREED_S, NBYTES), 0.0)
    late_s: dict[int, list[float]] = {}
    decisions: set[tuple[int, float]] = set()
    for batch in batches:
        sums[BATCHES] += 1
        sums[NBYTES] += batch.nbytes
        sums[MOVED_S] += batch.done_at - batch.moved_at
        sums[WAITED_S] += batch.waited_s
        sums[UNAGREED_S] += max(0.0, batch.waited_s - (batch.done_at - batch.agreed_at))
        decision = batch.group, batch.agreed_at  # one decision may be about several batches
        if batch.last_rank >= 0 and batch.late_s > 0 and decision not in decisions:
            decisions.add(decision)
            late_s.setdefault(batch.last_rank, []).append(batch.late_s)
    return sums, late_s


class Spent(NamedTuple):
    """The seconds that one rank spent in each class, and how many batches ran.

    ``inside_s`` is the time from `init` to `shutdown`. It contains ``waiting_s`` for other ranks, ``moving_s`` for
    bytes, and ``loading_s`` for data. ``ending_s`` is the time from `shutdown` to the end. A root also has the
    ``latest_rank``, for which the ranks of its group waited longest: ``latest_rank_s``, added up over these ranks.
    """

    batches: float
    inside_s: float
    ending_s: float
    waiting_s: float
    moving_s: float
    loading_s: float
    latest_rank: float
    latest_rank_s: float


class Classes(NamedTuple):
    """A time, divided."""

    compute_s: float
    waiting_s: float
    moving_s: float
    loading_s: float
    starting_s: float
    ending_s: float


def spent(quantities: Quantities, inside_s: float, ending_s: float = 0.0) -> Spent:
    """What a rank with these quantities spent in ``inside_s``; numbers are limited to 0 to `MOST_S`."""
    waiting_s = quantities[UNAGREED_S]
    moving_s = quantities[WAITED_S] - waiting_s
    more = (quantities.get(row, 0.0) for row in (LOADING_S, LATEST_RANK, LATEST_RANK_S))
    numbers = (quantities[BATCHES], inside_s, ending_s, waiting_s, moving_s, *more)
    return Spent(*(min(max(number, 0.0), MOST_S) for number in numbers))


def spent_by(quantities: Quantities, ended_at: float) -> Spent:
    """What a rank with these quantities had spent when it ended, at ``ended_at`` on its host's monotonic clock."""
    joined_at, left_at = quantities[JOINED_AT], quantities[LEFT_AT]
    latest_s = (left_at or ended_at) - joined_at if joined_at > 0 else 0.0
    inside_s = quantities[EARLIER_S] + max(0.0, latest_s)
    return spent(quantities, inside_s, ended_at - left_at if left_at > 0 else 0.0)


def divide(wall_s: float, spent: Spent) -> Classes:
    """Divides ``wall_s`` into classes, which add up to it."""
    inside_s = min(spent.inside_s, wall_s)
    ending_s = min(spent.ending_s, wall_s - inside_s)
    blocked = spent.waiting_s, spent.moving_s, spent.loading_s
    excess = max(1.0, sum(blocked) / inside_s if inside_s else 1.0)  # several threads may have waited at once
    waiting_s, moving_s, loading_s = (seconds / excess if inside_s else 0.0 for seconds in blocked)
    compute_s = max(0.0, inside_s - waiting_s - moving_s - loading_s)
    return Classes(compute_s, waiting_s, moving_s, loading_s, wall_s - inside_s - ending_s, ending_s)


def describe(ranks: Sequence[Spent], wall_s: float, describe_rank: Callable[[int], str], others: int) -> str:
    """The line about a job of ``wall_s``, with means over ranks; empty for a short job, or one without collectives.

    Each of ``ranks`` stands for ``others`` waiting ranks: 1 if ``ranks`` are all ranks, 0 if a rank is alone.
    """
    if not others:  # a rank alone waits for nobody
        ranks = [each._replace(waiting_s=0.0, moving_s=each.waiting_s + each.moving_s) for each in ranks]
    if wall_s < LEAST_S or not any(each.batches for each in ranks):
        return ""
    divided = [divide(wall_s, each) for each in ranks]
    seconds = [sum(of_class) for of_class in zip(*divided, strict=True)]
    whole_s = wall_s * len(ranks)
    named = None
    if sum(each.waiting_s for each in divided) >= _LEAST_WAITING * whole_s:
        named = _latest(ranks, others * sum(each.waiting_s for each in ranks))
    whom = "each other" if named is None else f"rank {named}"
    names = ("compute", f"waiting for {whom}", "communication not hidden", "data loading", "starting", "ending")
    percentages = _percentages([each / whole_s for each in seconds])
    shown = ", ".join(f"{name} {percent} %" for name, percent in zip(names, percentages, strict=True) if percent)
    slowest = "" if named is None else f"; slowest {describe_rank(named)}"
    return f"time {wall_s:.{0 if wall_s >= 10 else 1}f} s: {shown}{slowest}"


def _latest(ranks: Sequence[Spent], waited_s: float) -> int | None:
    """The rank that caused most of the ``waited_s`` of all ranks; None if there is no such rank."""
    late_s: dict[int, float] = {}
    for each in ranks:
        rank = int(each.latest_rank)
        late_s[rank] = late_s.get(rank, 0.0) + each.latest_rank_s
    rank = max(late_s, key=late_s.__getitem__)
    return rank if late_s[rank] >= _LEAST_CAUSED * waited_s else None


def _percentages(shares: Sequence[float]) -> list[int]:
    """Whole percentages that add up to 100: the shares that rounding down changes most are rounded up."""
    percentages = [math.floor(100 * share) for share in shares]
    by_loss = sorted(range(len(shares)), key=lambda index: percentages[index] - 100 * shares[index])
    for index in by_loss[: 100 - sum(percentages)]:
        percentages[index] += 1
    return percentages
