"""Where the time of this rank goes, in the numbers of its black box (`hvdlite.observe.blackbox.Gauge`).

All of them are sums that others keep anyway, so an account costs nothing until it is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from hvdlite.engine.observer import Observer
from hvdlite.observe.blackbox import Gauge
from hvdlite.observe.loading import loading
from hvdlite.observe.times import Slowest, Stay, describe, spent

_LASTING: Final = (Gauge.BATCHES, Gauge.MOVED_S, Gauge.WAITED_S, Gauge.UNAGREED_S, Gauge.LOADING_S, Gauge.EARLIER_S)
"""Those that go on from one session of a process to the next."""


class _Group(NamedTuple):
    observer: Observer
    ranks: Sequence[int]


class Account:
    """The account of a session that begins ``now``, joins the job and leaves it.

    ``earlier`` are the gauges of the sessions before, if there were any. All times are on the monotonic clock.
    """

    def __init__(self, now: float, earlier: Mapping[Gauge, float]) -> None:
        self._began_at = now
        self._earlier = {gauge: earlier.get(gauge, 0.0) for gauge in _LASTING}
        if joined_at := earlier.get(Gauge.JOINED_AT, 0.0):
            self._earlier[Gauge.EARLIER_S] += max(0.0, earlier[Gauge.LEFT_AT] - joined_at)
        self._groups: dict[int, _Group] = {}  # replaced, never modified, because it is read without a lock
        self._late_s: dict[int, float] = {}  # of groups that are no more, and of the sessions before
        if latest_s := earlier.get(Gauge.LATEST_RANK_S, 0.0):
            self._late_s[int(earlier[Gauge.LATEST_RANK])] = latest_s
        self._joined_at = self._left_at = self._loaded_s = 0.0

    def watch(self, number: int, observer: Observer, ranks: Sequence[int], now: float) -> None:
        """Counts the group of the process set of this number too, which takes the place of an earlier one of its.

        ``ranks`` are the numbers of its ranks in the job.
        """
        replaced = self._groups.get(number)
        self._groups = {**self._groups, number: _Group(observer, ranks)}
        if replaced is not None:
            for gauge, value in _sums([replaced], now).items():
                self._earlier[gauge] += value
            self._late_s = _late_s([replaced], now, self._late_s)

    def join(self, now: float) -> None:
        """Notes that this rank has left `init`."""
        self._joined_at, self._loaded_s = now, loading.seconds(now)

    def leave(self, now: float) -> None:
        """Notes that this rank begins to leave, once."""
        self._left_at = self._left_at or now

    def gauges(self, now: float) -> dict[Gauge, float]:
        """The numbers at ``now``."""
        groups = list(self._groups.values())
        late_s = _late_s(groups, now, self._late_s)
        latest_rank = max(late_s, key=late_s.__getitem__, default=0)
        loaded_s = loading.seconds(self._left_at or now) - self._loaded_s if self._joined_at else 0.0
        own = {**_sums(groups, now), Gauge.LOADING_S: loaded_s}
        return {
            **{gauge: value + own.get(gauge, 0.0) for gauge, value in self._earlier.items()},
            Gauge.JOINED_AT: self._joined_at,
            Gauge.LEFT_AT: self._left_at,
            Gauge.LATEST_RANK: float(latest_rank),
            Gauge.LATEST_RANK_S: late_s.get(latest_rank, 0.0),
        }

    def describe(self, hosts: Sequence[str], now: float) -> str:
        """The line about this session, of a rank that sees no other; empty if there is nothing to say.

        ``hosts`` are those of all ranks. Of this rank's waits it is assumed that all others wait as long.
        """
        stay = Stay(spent(self.gauges(now).__getitem__, now))
        return describe([stay], now - self._began_at, lambda rank: Slowest(rank, hosts[rank]), others=len(hosts) - 1)


def _sums(groups: Iterable[_Group], now: float) -> dict[Gauge, float]:
    sums = [group.observer.sums(now) for group in groups]
    return {
        Gauge.BATCHES: float(sum(each.batches for each in sums)),
        Gauge.MOVED_S: sum(each.moved_s for each in sums),
        Gauge.WAITED_S: sum(each.waited_s for each in sums),
        Gauge.UNAGREED_S: sum(each.unagreed_s for each in sums),
    }


def _late_s(groups: Iterable[_Group], now: float, earlier: Mapping[int, float]) -> dict[int, float]:
    """For how long others waited for each rank, by its number in the job, added up over them and to ``earlier``."""
    late_s = dict(earlier)
    for observer, ranks in groups:
        for rank, seconds in zip(ranks, observer.sums(now).late_s, strict=True):
            late_s[rank] = late_s.get(rank, 0.0) + seconds * (len(ranks) - 1)
    return late_s
