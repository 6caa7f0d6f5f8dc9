"""Collects where the time of each rank went, and says at the end of the job where the time of all went."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hvdlite.observe.times import MOST_S, Slowest, Spent, Stay, describe

from ..stream.frames import FrameError


class Times:
    """The times of a job that began at ``began``, on the monotonic clock of hvdrun. ``hosts`` are those of its ranks.

    ``cause_of`` says in a few words what held up a slow rank, and nothing where that is not known.
    """

    def __init__(self, hosts: Mapping[int, str], began: float, cause_of: Callable[[int], str]) -> None:
        self._hosts, self._began, self._cause_of = hosts, began, cause_of
        self._ended: dict[int, tuple[Spent, float]] = {}

    def ended(self, rank: int, told: object, at: float, now: float) -> None:
        """Rank ``rank`` ended at ``at``. Its agent told what it had spent. Raises FrameError if that is nothing."""
        if told is not None:
            spent = _spent(told)
            if int(spent.latest_rank) not in self._hosts:  # whatever a rank may write
                spent = spent._replace(latest_rank_s=0.0)
            self._ended[rank] = spent, at if self._began <= at <= now else now

    def batches(self, rank: int) -> int | None:
        """How many batches ``rank`` had run when it ended; None if that is not known."""
        return int(self._ended[rank][0].batches) if rank in self._ended else None

    def line(self, now: float) -> str:
        """The line about a job that ends ``now``; empty if there is nothing to say."""
        stays = [Stay(spent, now - at) for spent, at in self._ended.values()]
        return describe(stays, now - self._began, self._slowest, others=min(1, len(self._hosts) - 1))

    def _slowest(self, rank: int) -> Slowest:
        return Slowest(rank, self._hosts[rank], self._cause_of(rank))


def _spent(told: object) -> Spent:
    """What an agent told, which runs on another machine and may send anything."""
    if not isinstance(told, list) or len(told) != len(Spent._fields):
        raise FrameError("a rank's times are missing")
    if not all(type(each) in (int, float) and 0 <= each <= MOST_S for each in told):
        raise FrameError("a rank's times are no times")
    return Spent(*told)
