"""Collects where the time of each rank went, for the line at the end of the job about all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hvdlite.blackbox.times import Spent, describe


class Times:
    """The times of a job that began at ``began``, on the monotonic clock of hvdrun. ``hosts`` are those of its ranks.

    ``cause_of`` returns in a few words why a rank was slow, and an empty text if that is not known.
    """

    def __init__(self, hosts: Mapping[int, str], began: float, cause_of: Callable[[int], str]) -> None:
        self._hosts, self._began, self._cause_of = hosts, began, cause_of
        self._ended: dict[int, tuple[Spent, float]] = {}

    def ended(self, rank: int, spent: Spent | None, at: float, now: float) -> None:
        """Rank ``rank`` ended at ``at``; ``spent`` is None if its agent does not know it."""
        if spent is not None:
            if int(spent.latest_rank) not in self._hosts:  # whatever a rank may write
                spent = spent._replace(latest_rank_s=0.0)
            self._ended[rank] = spent, at if self._began <= at <= now else now

    def batches(self, rank: int) -> int | None:
        """How many batches ``rank`` had run when it ended; None if that is not known."""
        return int(self._ended[rank][0].batches) if rank in self._ended else None

    def line(self, now: float) -> str:
        """The line about a job that ends ``now``; empty if there is nothing to say."""
        ranks = [spent._replace(ending_s=spent.ending_s + now - at) for spent, at in self._ended.values()]
        return describe(ranks, now - self._began, self._describe, others=min(1, len(self._hosts) - 1))

    def _describe(self, rank: int) -> str:
        cause = self._cause_of(rank)
        return f"rank {rank} on {self._hosts[rank]}{f' ({cause})' if cause else ''}"
