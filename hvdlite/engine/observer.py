"""Records of the latest batches of a group on this rank, of a fixed size each.

The `Work` of a batch exists anyway, and is the record: a turn and the executor write the times into it on their way.
It is published when it is done, and not changed again but for letting go of its entries. So a reader in any thread
needs no lock and sees complete records only, and what it has missed it knows by their numbers, which are the same on
all ranks. Rank 0 also knows when the news of each rank came, since all submit to it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Final, NamedTuple

from hvdlite.engine.inflight import InFlight
from hvdlite.log import logger
from hvdlite.negotiation.delays.arrival import NOT_KNOWN, UNKNOWN, Arrival
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import Kind
from hvdlite.negotiation.replica import Work
from hvdlite.observe.blackbox import Finding
from hvdlite.planes.base import Planes

CAPACITY: Final = 512  # records


class BatchRecord(NamedTuple):
    """One batch that is done, ``number`` from 1. Times are in seconds on this rank's monotonic clock.

    The arrivals (see `Arrival`) are known on rank 0; elsewhere both ranks are UNKNOWN. This rank told at ``told_at``
    what it had submitted, knew at ``agreed_at`` that the batch would run, and moved its bytes from ``moved_at`` to
    ``done_at``. ``waited_s`` is for how long of the time since the batch before was done some thread did nothing but
    wait for the group: what the batch cost the program. ``nbytes`` are those that this rank submitted.
    """

    number: int
    tensors: int
    nbytes: int
    first_rank: int
    first_at: float
    last_rank: int
    last_at: float
    late_s: float
    told_at: float
    agreed_at: float
    moved_at: float
    done_at: float
    waited_s: float


class Statistics(NamedTuple):
    """One group on this rank, since it was connected.

    The bytes of ``batches``, which are done or have failed, moved for ``moved_s`` in all, and the program waited for
    ``waited_s``. ``in_flight`` tensors are submitted and not done. ``planes`` has the name of the data plane for each
    kind of device, and ``counters`` what all of them count.
    """

    planes: Mapping[str, str]
    batches: int
    moved_s: float
    waited_s: float
    in_flight: int
    counters: Mapping[str, int]


class Sums(NamedTuple):
    """What one group on this rank has come to, since it was connected.

    Some thread has done nothing but wait for ``waited_s``, with a wait that goes on; for ``unagreed_s`` of these its
    batch was not agreed yet, so other ranks were late. ``late_s`` has for each rank of the group how long the others
    waited for it (see `Arrival`), and is known on rank 0.
    """

    batches: int
    moved_s: float
    waited_s: float
    unagreed_s: float
    late_s: Sequence[float]


class State(NamedTuple):
    """What one group on this rank is in the middle of.

    ``in_flight`` tensors are submitted and not done, those of ``first``, with their kinds, for longest; some thread has
    done nothing but wait for ``waiting_s``, and for 0 if none does, of which nothing was agreed for ``unagreed_s``.
    ``missing`` is the one rank of the group without which nothing is, or UNKNOWN. If the group ``has_ended``, nothing
    more is in flight.
    """

    in_flight: int
    first: list[tuple[Kind, str]]
    waiting_s: float
    unagreed_s: float
    missing: int
    has_ended: bool


Subscriber = Callable[[Work], None]
"""Called with each batch when it is done, in the thread that ran it, before its waiters wake. Must not wait."""


class Observer:
    """The observer of one group on this rank.

    A turn keeps ``told_at``, when this rank last told what it had submitted, and reads ``arrival``, which is of what is
    decided next, or None while nothing of that is known. ``agreed`` are the batches that were agreed and have not run,
    which the executor keeps, and ``missing`` is the one rank without which nothing is agreed for long. ``leader_of``
    has for each rank the one through which its news come. ``on_turn``, if it is there, is called at the beginning of
    each turn, in its thread; it must not wait. ``on_finding`` takes what a turn found out about the job, and returns
    whether somebody shows it to the user.
    """

    def __init__(self, in_flight: InFlight, leader_of: Sequence[int]) -> None:
        self.told_at = 0.0
        self._leader_of = leader_of
        self._leader = UNKNOWN
        self._heard_at = self._others_heard_at = math.inf
        self.arrival: Arrival | None = None
        self.on_turn: Callable[[], None] | None = None
        self.on_finding: Callable[[Finding], bool] | None = None
        self._in_flight = in_flight
        self.agreed: Sequence[Work] = ()
        self.missing = UNKNOWN
        self._late_s = [0.0] * len(leader_of)
        self._latest: deque[Work] = deque(maxlen=CAPACITY)
        self._publish = self._latest.append
        self._batches = 0
        self._moved_s = self._waited_s = self._unagreed_s = self._done_at = 0.0
        self._subscribers: tuple[Subscriber, ...] = ()
        self._subscribing = threading.Lock()  # held to replace the tuple, not to read it

    def heard(self, rank: int, was_last: bool, now: float) -> None:
        """Records, on rank 0, that news of ``rank`` came. ``was_last``: they completed a tensor of all other ranks."""
        leader = self._leader_of[rank]
        if leader != self._leader:
            self._leader = leader
            self._others_heard_at = self._heard_at
        self._heard_at = now
        arrival = self.arrival
        if arrival is None:
            self.arrival = arrival = (rank, now, UNKNOWN, 0.0, 0.0)
        if was_last:
            first_rank, first_at, last_rank, _, longest_s = arrival
            late_s = now - self._others_heard_at
            if last_rank < 0 or late_s > longest_s:
                self.arrival = (first_rank, first_at, rank, now, late_s if late_s > 0 else 0.0)

    def decided(self) -> None:
        """Records, on rank 0, that what was heard so far has led to a decision."""
        arrival = self.arrival
        if arrival is not None:
            self._late_s[arrival[2]] += arrival[4]  # which is 0 where no rank is known
            self.arrival = None
            self.missing = UNKNOWN

    def found(self, finding: Finding) -> None:
        """Shows ``finding`` to the user."""
        if logger.isEnabledFor(logging.WARNING) and (self.on_finding is None or not self.on_finding(finding)):
            logger.warning("%s", finding.text)

    def done(self, work: Work) -> None:
        """Records that ``work`` ran, or failed. For the threads that finish entries, before they do.

        Two may meet here where there are devices; a statement without a call is not interrupted, so no sum misses one.
        """
        work.done_at = now = monotonic()
        waited_s = 0.0
        if self._in_flight.waiters:
            since = self._in_flight.waited_since
            if self._done_at > since:
                since = self._done_at
            waited_s = now - since
            self._waited_s += waited_s
            if work.agreed_at > since:
                self._unagreed_s += work.agreed_at - since
        work.waited_s = waited_s
        work.tensors = len(work.entries)
        self._done_at = now
        self._batches += 1
        self._moved_s += now - work.moved_at
        self._publish(work)
        if self._subscribers:
            self._tell(work)

    def refused(self) -> None:
        """Records that entries fail without a batch, which somebody may have waited for. For turns, before they do."""
        waited_s, unagreed_s = self._wait(now := monotonic())
        self._waited_s += waited_s
        self._unagreed_s += unagreed_s
        self._late_s, self.missing = self._late_so_far_s(now), UNKNOWN
        self._done_at = now

    def _wait(self, now: float) -> tuple[float, float]:
        """How long the wait that goes on has lasted, since the batch before was done, and how long until agreed."""
        if not self._in_flight.waiters:
            return 0.0, 0.0
        since = max(self._in_flight.waited_since, self._done_at)
        try:
            until = self.agreed[0].agreed_at
        except IndexError:
            until = now
        return max(0.0, now - since), max(0.0, min(until, now) - since)

    def _late_so_far_s(self, now: float) -> list[float]:
        """How long others waited for each rank, and still wait for the one that is missing."""
        late_s = self._late_s.copy()
        if (missing := self.missing) >= 0:
            late_s[missing] += max(0.0, now - self._heard_at)
        return late_s

    def _tell(self, work: Work) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(work)
            except Exception:
                logger.exception("a subscriber to the batches of a group failed and hears of no more")
                self.unsubscribe(subscriber)

    # ---- for any thread

    def subscribe(self, subscriber: Subscriber) -> None:
        """Calls ``subscriber`` with each batch from now on, until it raises."""
        with self._subscribing:
            self._subscribers += (subscriber,)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Ends `subscribe`. A call that has begun may still come to its end."""
        with self._subscribing:
            self._subscribers = tuple(each for each in self._subscribers if each is not subscriber)

    def keep_times(self, keeps: bool) -> None:
        """Also lets entries and batches have the times that only a timeline needs, from now on."""
        self._in_flight.keeps_times = keeps

    def latest(self, after: int = 0) -> list[BatchRecord]:
        """Returns the records numbered above ``after`` that are still there, in the order of completion."""
        return [_record(work) for work in self._latest.copy() if work.number > after]

    def state(self, now: float, most: int) -> State:
        """Returns the state at ``now``, on the monotonic clock, with at most that many of the tensors in flight."""
        entries = self._in_flight.all()
        waiting_s = now - self._in_flight.waited_since if self._in_flight.waiters else 0.0
        first = [(entry.request.kind, str(entry.name)) for entry in entries[:most]]
        _, unagreed_s = self._wait(now)
        has_ended = self._in_flight.has_ended  # asked last
        return State(len(entries), first, max(0.0, waiting_s), unagreed_s, self.missing, has_ended)

    def in_flight(self) -> list[Entry]:
        """Returns what is submitted and not done, the first submitted first."""
        return self._in_flight.all()

    def sums(self, now: float) -> Sums:
        """Returns the sums at ``now``, on the monotonic clock. Cheap."""
        waited_s, unagreed_s = self._waited_s, self._unagreed_s  # first: a wait that ends now is not counted twice
        going_s, unagreed_going_s = self._wait(now)
        late_s = self._late_so_far_s(now)
        return Sums(self._batches, self._moved_s, waited_s + going_s, unagreed_s + unagreed_going_s, late_s)

    def statistics(self, planes: Planes) -> Statistics:
        """Returns the numbers so far, each of them correct at some moment of the call."""
        counters: Counter[str] = Counter()
        for plane in planes.values():
            counters.update(plane.counters)
        return Statistics(
            {kind: plane.name for kind, plane in planes.items()},
            self._batches,
            self._moved_s,
            self._waited_s,
            len(self._in_flight.all()),
            counters,
        )


def _record(work: Work) -> BatchRecord:
    return BatchRecord(
        work.number,
        work.tensors,
        work.nbytes,
        *(work.arrival or NOT_KNOWN),
        work.told_at,
        work.agreed_at,
        work.moved_at,
        work.done_at,
        work.waited_s,
    )
