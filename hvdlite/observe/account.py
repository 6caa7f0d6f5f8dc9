"""The quantities of a rank's session (`hvdlite.metrics.table`), and where its time goes.

They are sums that exist anyway, so an account costs nothing until it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hvdlite.blackbox.times import describe, spent_by
from hvdlite.engine.observer import Observer
from hvdlite.metrics.table import (
    EARLIER_S,
    JOINED_AT,
    LATEST_RANK,
    LATEST_RANK_S,
    LEFT_AT,
    LOADING_S,
    Quantities,
    of_ranks,
)
from hvdlite.observe.loading import loading


class WatchedGroup(NamedTuple):
    """A group, and the numbers of its ranks in the job."""

    observer: Observer
    ranks: Sequence[int]


class Account:
    """The account of a session that begins ``now``, joins the job and leaves it. Times are on the monotonic clock.

    Counters continue from ``earlier``, the quantities of the sessions before. ``groups`` are the session's groups, by
    the number of their process set.
    """

    def __init__(self, now: float, earlier: Quantities) -> None:
        self._began_at = now
        self._earlier = {row: earlier.get(row, 0.0) for row in of_ranks() if row.is_counter}
        if joined_at := earlier.get(JOINED_AT, 0.0):
            self._earlier[EARLIER_S] += max(0.0, earlier[LEFT_AT] - joined_at)
        self.groups: dict[int, WatchedGroup] = {}  # replaced, never modified, because it is read without a lock
        self._late_s: dict[int, float] = {}  # of replaced groups, and of the sessions before
        if latest_s := earlier.get(LATEST_RANK_S, 0.0):
            self._late_s[int(earlier[LATEST_RANK])] = latest_s
        self._joined_at = self._left_at = self._loaded_s = 0.0

    def watch(self, number: int, observer: Observer, ranks: Sequence[int], now: float) -> None:
        """Adds the group of the process set ``number``, which may replace an earlier one of that number.

        ``ranks`` are the numbers of its ranks in the job.
        """
        replaced = self.groups.get(number)
        self.groups = {**self.groups, number: WatchedGroup(observer, ranks)}
        if replaced is not None:
            for row, value in replaced.observer.quantities(now).items():
                if row.is_counter:
                    self._earlier[row] += value
            _add_late(self._late_s, replaced, now)

    def join(self, now: float) -> None:
        """Notes that this rank has left `init`."""
        self._joined_at, self._loaded_s = now, loading.seconds(now)

    def leave(self, now: float) -> None:
        """Notes that this rank begins to leave, once."""
        self._left_at = self._left_at or now

    def quantities(self, now: float, of_python: Callable[[], Quantities] = dict) -> Quantities:
        """The quantities of this rank at ``now``. ``of_python`` returns the quantities of `Reader.PYTHON`."""
        loaded_s = loading.seconds(self._left_at or now) - self._loaded_s if self._joined_at else 0.0
        groups, late_s = list(self.groups.values()), self._late_s.copy()
        found = self._earlier.copy()
        for each in (*(group.observer.quantities(now) for group in groups), of_python(), {LOADING_S: loaded_s}):
            for row, value in each.items():
                found[row] = found.get(row, 0.0) + value
        for group in groups:
            _add_late(late_s, group, now)
        latest_rank = max(late_s, key=late_s.__getitem__, default=0)
        return found | {
            JOINED_AT: self._joined_at,
            LEFT_AT: self._left_at,
            LATEST_RANK: latest_rank,
            LATEST_RANK_S: late_s.get(latest_rank, 0.0),
        }

    def describe(self, hosts: Sequence[str], now: float) -> str:
        """The line about this session, from this rank alone; empty if there is nothing to report.

        ``hosts`` are the hosts of all ranks. The line assumes that all other ranks wait as long as this one.
        """
        own = spent_by(self.quantities(now), now)
        return describe([own], now - self._began_at, lambda rank: f"rank {rank} on {hosts[rank]}", len(hosts) - 1)


def _add_late(late_s: dict[int, float], group: WatchedGroup, now: float) -> None:
    """Adds the time for which others waited for each rank, summed over the others, by its number in the job."""
    for rank, seconds in zip(group.ranks, group.observer.late_s(now), strict=True):
        late_s[rank] = late_s.get(rank, 0.0) + seconds * (len(group.ranks) - 1)
