"""Observes one group on this rank: its quantities, its state, and each batch when it is done.

Turns and the executor write times into the `Work` of a batch, so a batch needs no further record. Subscribers receive
each `Work` when it is done; after that the executor only removes its entries. The root, to which all ranks send their
requests, also records when the requests of each rank arrived.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from hvdlite.blackbox.format import Finding
from hvdlite.engine.inflight import InFlight
from hvdlite.log import logger
from hvdlite.metrics.table import BATCHES, IN_FLIGHT, MOVED_S, UNAGREED_S, WAITED_S, Quantities
from hvdlite.negotiation.delays.arrival import UNKNOWN, Arrival
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import Kind
from hvdlite.negotiation.replica import Work
from hvdlite.planes.base import Planes


class Statistics(NamedTuple):
    """Quantities of one group on this rank, since it was opened.

    ``planes`` has the name of the data plane for each kind of device, and ``counters`` the sums of the counters of all
    data planes. ``batches`` are done. `hvdlite.metrics.table` explains the other quantities.
    """

    planes: Mapping[str, str]
    batches: int
    moved_s: float
    waited_s: float
    in_flight: int
    counters: Mapping[str, int]


class State(NamedTuple):
    """What one group does on this rank at one moment.

    ``in_flight`` tensors are submitted and not done; ``first`` has the kinds and names of the oldest. At least one
    thread has waited at any time for ``waiting_s`` (0 if none waits); for ``unagreed_s`` of that time no batch was
    agreed. ``missing`` is the group index of the rank for which all other ranks wait, or UNKNOWN. In a group that
    ``has_ended`` nothing stays in flight.
    """

    in_flight: int
    first: list[tuple[Kind, str]]
    waiting_s: float
    unagreed_s: float
    missing: int
    has_ended: bool


Subscriber = Callable[[Work], None]
"""Called with each batch when it is done, in the thread that finishes it, before its waiters wake. Must not block."""


OnCall = Callable[[int, Sequence[Entry], float, float, "Arrival | None"], None]
"""Called in place of a `Subscriber` with a batch that a thread ran in one call, for which it makes no `Work`: number,
entries, when the call began, when it was done, and what had arrived. Must not block, and must not raise."""


class Observer:
    """The observer of one group on this rank.

    - ``sent_at``: when this rank last published what it had submitted. Turns write it.
    - ``arrival``: what has arrived since the last decision, or None if nothing has. Turns read it.
    - ``agreed``: the batches that were agreed and have not run. The executor changes them.
    - ``missing``: the rank for which all other ranks have waited for long, if there is exactly one.
    - ``on_turn``: called at the beginning of each turn, in its thread. It must not block.
    - ``on_finding``: called with what a turn found out about the job. Returns True if it shows the finding to the user.

    Ranks are group indices. ``leader_of`` has for each rank the rank through which its messages arrive.
    """

    def __init__(self, in_flight: InFlight, leader_of: Sequence[int]) -> None:
        self.sent_at = 0.0
        self._leader_of = leader_of
        self._leader = UNKNOWN
        self._arrived_at = self._others_arrived_at = math.inf
        self.arrival: Arrival | None = None
        self.on_turn: Callable[[], None] | None = None
        self.on_finding: Callable[[Finding], bool] | None = None
        self._in_flight = in_flight
        self.agreed: Sequence[Work] = ()
        self.missing = UNKNOWN
        self._late_s = [0.0] * len(leader_of)
        self._batches = 0
        self._moved_s = self._waited_s = self._unagreed_s = self._done_at = 0.0
        self._subscribers: tuple[tuple[Subscriber, OnCall | None], ...] = ()
        self._subscribing = threading.Lock()  # held to replace the tuple, not to read it

    def arrived(self, rank: int, was_last: bool, now: float) -> None:
        """Records on the root that requests of ``rank`` arrived; ``was_last``: they were the last for some tensor."""
        leader = self._leader_of[rank]
        if leader != self._leader:
            self._leader = leader
            self._others_arrived_at = self._arrived_at
        self._arrived_at = now
        arrival = self.arrival
        if arrival is None:
            self.arrival = arrival = (rank, now, UNKNOWN, 0.0, 0.0)
        if was_last:
            first_rank, first_at, last_rank, _, longest_s = arrival
            late_s = now - self._others_arrived_at
            if last_rank < 0 or late_s > longest_s:
                self.arrival = (first_rank, first_at, rank, now, late_s if late_s > 0 else 0.0)

    def all_arrived(self, arrival: Arrival) -> None:
        """Records on the root, in place of `arrived`, that requests of all ranks arrived, and led to a decision."""
        _, _, self._leader, self._arrived_at, late_s = arrival
        self._others_arrived_at = self._arrived_at - late_s

    def decided(self) -> None:
        """Records on the root that everything that has arrived has led to a decision."""
        arrival = self.arrival
        if arrival is not None:
            self._late_s[arrival[2]] += arrival[4]  # adds 0 if the last rank is UNKNOWN
            self.arrival = None
            self.missing = UNKNOWN

    def found(self, finding: Finding) -> None:
        """Shows ``finding`` to the user, as a warning unless `on_finding` shows it."""
        if logger.isEnabledFor(logging.WARNING) and (self.on_finding is None or not self.on_finding(finding)):
            logger.warning("%s", finding.text)

    def done(self, work: Work) -> None:
        """Records that ``work`` ran, or failed. Threads that finish entries call it before they finish them.

        Two such threads may run at once if there are devices. A statement without a call is atomic, so no sum is lost.
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
        if self._subscribers:
            self._publish(work)

    def called(
        self, number: int, entries: Sequence[Entry], begun_at: float, done_at: float, arrival: Arrival | None
    ) -> None:
        """Records batch ``number``, which a thread ran in one call: it waited from ``begun_at`` on."""
        self._done_at = done_at
        waited_s = done_at - begun_at
        self._waited_s += waited_s
        self._unagreed_s += waited_s
        self._batches += 1
        if arrival is not None:
            self._late_s[arrival[2]] += arrival[4]  # adds 0 if the last rank is UNKNOWN
            self.missing = UNKNOWN
        for subscriber, on_call in self._subscribers:  # an error may come from a signal handler: it is the caller's
            if on_call is not None:
                on_call(number, entries, begun_at, done_at, arrival)
                continue
            work = Work(entries, ((),) * len(entries), number, sum(entry.nbytes for entry in entries))
            work.tensors, work.arrival, work.waited_s = len(entries), arrival, waited_s
            work.sent_at, work.agreed_at, work.moved_at, work.done_at = begun_at, done_at, done_at, done_at
            subscriber(work)

    def waited(self, seconds: float) -> None:
        """Records that a thread waited in a call that was left: the rest of its wait begins now."""
        self._waited_s += seconds
        self._unagreed_s += seconds

    def refused(self) -> None:
        """Records that entries fail without a batch. Turns call it before they fail them, to count the waits so far."""
        waited_s, unagreed_s = self._current_wait(now := monotonic())
        self._waited_s += waited_s
        self._unagreed_s += unagreed_s
        self._late_s, self.missing = self.late_s(now), UNKNOWN
        self._done_at = now

    def _current_wait(self, now: float) -> tuple[float, float]:
        """Returns the seconds waited since the last batch was done, and how many of them passed before an agreement."""
        if not self._in_flight.waiters:
            return 0.0, 0.0
        since = max(self._in_flight.waited_since, self._done_at)
        try:
            until = self.agreed[0].agreed_at
        except IndexError:
            until = now
        return max(0.0, now - since), max(0.0, min(until, now) - since)

    def _publish(self, work: Work) -> None:
        for subscriber, _ in self._subscribers:
            try:
                subscriber(work)
            except Exception:
                logger.exception("a subscriber to the batches of a group failed, and is not called again")
                self.unsubscribe(subscriber)

    # ---- for any thread

    def subscribe(self, subscriber: Subscriber, on_call: OnCall | None = None) -> None:
        """Calls ``subscriber`` with each batch from now on, until it raises; or ``on_call``, see there."""
        with self._subscribing:
            self._subscribers += ((subscriber, on_call),)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Stops calling ``subscriber``. A call that has begun may still run when this returns."""
        with self._subscribing:
            self._subscribers = tuple(each for each in self._subscribers if each[0] is not subscriber)

    def keep_times(self, keeps: bool) -> None:
        """Turns the times of entries and batches that only a timeline needs on or off; see `InFlight`."""
        self._in_flight.keeps_times = keeps

    def state(self, now: float, most: int) -> State:
        """Returns the state at ``now``, on the monotonic clock. ``first`` has at most ``most`` tensors."""
        entries = self._in_flight.all()
        waiting_s = now - self._in_flight.waited_since if self._in_flight.waiters else 0.0
        first = [(entry.request.kind, str(entry.name)) for entry in entries[:most]]
        _, unagreed_s = self._current_wait(now)
        has_ended = self._in_flight.has_ended  # read last: if False, it was False at all reads above
        return State(len(entries), first, max(0.0, waiting_s), unagreed_s, self.missing, has_ended)

    def in_flight(self) -> list[Entry]:
        """Returns the entries that are submitted and not done, in order of submission."""
        return self._in_flight.all()

    def quantities(self, now: float) -> Quantities:
        """Returns the quantities at ``now``, on the monotonic clock, including current waits. Cheap."""
        waited_s, unagreed_s = self._waited_s, self._unagreed_s  # read first: a wait that ends now must not count twice
        current_s, current_unagreed_s = self._current_wait(now)
        return {
            BATCHES: self._batches,
            MOVED_S: self._moved_s,
            WAITED_S: waited_s + current_s,
            UNAGREED_S: unagreed_s + current_unagreed_s,
            IN_FLIGHT: len(self._in_flight.all()),
        }

    def late_s(self, now: float) -> list[float]:
        """Returns, on the root, the seconds that other ranks have waited for each rank, including a missing one."""
        late_s = self._late_s.copy()
        if (missing := self.missing) >= 0:
            late_s[missing] += max(0.0, now - self._arrived_at)
        return late_s

    def statistics(self, planes: Planes) -> Statistics:
        """Returns the statistics so far. Each number is correct at some moment of the call."""
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
