"""Where the time of a job went, in one line, from the gauges of its ranks (`hvdlite.observe.blackbox`).

All time of a rank, from the begin of the job to its end, is of one class. It starts until `init` has returned, and it
ends from `shutdown` on. In between it waits for others until its batch is agreed, waits for the bytes of a batch that
is, or loads data; the rest it computes. A share is the mean over the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from hvdlite.observe.blackbox import Gauge

LEAST_S: Final = 2.0  # of a job that is worth a line
MOST_S: Final = 1e9  # of anything that is told of a rank
_LEAST_CAUSED: Final = 2 / 3  # of the waiting, by a rank that is named: of two ranks, one always causes half of it
_LEAST_WAITING: Final = 0.05  # of the time; the causes of less are chance


class Spent(NamedTuple):
    """What one rank spent its time on, in seconds, and how many batches ran.

    Of ``inside_s``, from `init` to `shutdown`, it waited for others for ``waiting_s``, for bytes for ``moving_s``, and
    loaded data for ``loading_s``. It ended ``ending_s`` after its `shutdown`, or without one. A root knows for whom the
    ranks of its group waited longest: for ``latest_rank``, and for ``latest_rank_s``, added up over all of them.
    """

    batches: float
    inside_s: float
    ending_s: float
    waiting_s: float
    moving_s: float
    loading_s: float
    latest_rank: float
    latest_rank_s: float


class Stay(NamedTuple):
    """A rank that ended ``before_end_s`` before the job did."""

    spent: Spent
    before_end_s: float = 0.0


class Slowest(NamedTuple):
    """The rank for which the others waited."""

    rank: int
    host: str
    cause: str = ""


def spent(gauge: Callable[[Gauge], float], ended_at: float) -> Spent:
    """What the rank with these gauges had spent when it ended. Whatever the gauges are, all numbers are sensible."""
    joined_at, left_at = gauge(Gauge.JOINED_AT), gauge(Gauge.LEFT_AT)
    latest_s = (left_at or ended_at) - joined_at if joined_at > 0 else 0.0
    waiting_s = gauge(Gauge.UNAGREED_S)
    numbers = (
        gauge(Gauge.BATCHES),
        gauge(Gauge.EARLIER_S) + max(0.0, latest_s),
        ended_at - left_at if left_at > 0 else 0.0,
        waiting_s,
        gauge(Gauge.WAITED_S) - waiting_s,
        gauge(Gauge.LOADING_S),
        gauge(Gauge.LATEST_RANK),
        gauge(Gauge.LATEST_RANK_S),
    )
    return Spent(*(min(max(number, 0.0), MOST_S) for number in numbers))


def _latest(stays: Sequence[Stay], waited_s: float) -> int | None:
    """The rank that caused most of the ``waited_s`` of all ranks, if there is one."""
    late_s: dict[int, float] = {}
    for rank, seconds in ((int(stay.spent.latest_rank), stay.spent.latest_rank_s) for stay in stays):
        late_s[rank] = late_s.get(rank, 0.0) + seconds
    rank = max(late_s, key=late_s.__getitem__)
    return rank if late_s[rank] >= _LEAST_CAUSED * waited_s else None


def describe(stays: Sequence[Stay], wall_s: float, slowest: Callable[[int], Slowest], others: int) -> str:
    """The line about a job of ``wall_s``; empty if that was short, or no collective ran.

    ``slowest`` tells more of a rank. Each of the ``stays`` stands for as many waiting ranks as there are ``others``:
    for one if all ranks are there, and for none if a rank is alone.
    """
    if not others:  # a rank alone waits for nobody
        stays = [stay._replace(spent=_alone(stay.spent)) for stay in stays]
    if wall_s < LEAST_S or not any(stay.spent.batches for stay in stays):
        return ""
    classes = _shares(stays, wall_s)
    named = None
    if classes["waiting"] >= _LEAST_WAITING:
        named = _latest(stays, others * sum(stay.spent.waiting_s for stay in stays))
    whom = f"rank {named}" if named is not None else "each other"
    shown = ", ".join(
        f"{name.replace('waiting', f'waiting for {whom}')} {percent} %"
        for name, percent in zip(classes, _percentages(list(classes.values())), strict=True)
        if percent
    )
    line = f"time {wall_s:.{0 if wall_s >= 10 else 1}f} s: {shown}"
    if named is not None:
        rank, host, cause = slowest(named)
        line += f"; slowest rank {rank} on {host}{f' ({cause})' if cause else ''}"
    return line


def _alone(spent: Spent) -> Spent:
    return spent._replace(waiting_s=0.0, moving_s=spent.waiting_s + spent.moving_s)


def _shares(stays: Sequence[Stay], wall_s: float) -> dict[str, float]:
    names = ("compute", "waiting", "communication not hidden", "data loading", "starting", "ending")
    sums = [0.0] * len(names)
    for each in (_classes(stay, wall_s) for stay in stays):
        sums = [total + seconds for total, seconds in zip(sums, each, strict=True)]
    return {name: total / wall_s / len(stays) for name, total in zip(names, sums, strict=True)}


def _classes(stay: Stay, wall_s: float) -> tuple[float, ...]:
    """Divides ``wall_s`` into the seconds of each class."""
    inside_s = min(stay.spent.inside_s, wall_s)
    ending_s = min(max(0.0, stay.before_end_s) + stay.spent.ending_s, wall_s - inside_s)
    blocked = stay.spent.waiting_s, stay.spent.moving_s, stay.spent.loading_s
    excess = max(1.0, sum(blocked) / inside_s if inside_s else 1.0)  # several threads may have waited at once
    waiting_s, moving_s, loading_s = (seconds / excess if inside_s else 0.0 for seconds in blocked)
    compute_s = max(0.0, inside_s - waiting_s - moving_s - loading_s)
    return compute_s, waiting_s, moving_s, loading_s, wall_s - inside_s - ending_s, ending_s


def _percentages(shares: Sequence[float]) -> list[int]:
    """Whole percentages that add up to 100, as the shares do to 1: those that lose most by it are rounded up."""
    percentages = [math.floor(100 * share) for share in shares]
    by_loss = sorted(range(len(shares)), key=lambda index: percentages[index] - 100 * shares[index])
    for index in by_loss[: 100 - sum(percentages)]:
        percentages[index] += 1
    return percentages
