"""A rank's part in the negotiation: sends new requests to the root, and queues agreed batches for the executor.

A *turn* takes what has come, submits, and on the root decides: there it also runs the negotiator, and cuts a batch as
soon as at most one batch waits behind the running one, so that readiness accumulates, and fuses, exactly while bytes
are moving. `Engine` says which thread runs a turn, and that one does at a time.

The end of a group reaches every rank of it as one `End` message, whoever causes it; the first one counts. If a rank
merely left, batches that were agreed before are still run, by all; if one was lost or failed, the plane is aborted.
Ranks are counted within the group here; ends, and all that users read, have their numbers in the job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hvdlite.control.link import ControlLink, Left, Lost
from hvdlite.engine.executor import Executor
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.errors import HvdError, Mismatch, PeerLost
from hvdlite.launched_by.report import report
from hvdlite.members.membership import Membership
from hvdlite.negotiation.delays.arrival import UNKNOWN
from hvdlite.negotiation.delays.stall import StallWatch
from hvdlite.negotiation.delays.straggler import StragglerWatch
from hvdlite.negotiation.end_messages import error_of, fate_of
from hvdlite.negotiation.messages import ORDERLY, End, EndKind, Ready, Run
from hvdlite.negotiation.negotiate import Negotiator
from hvdlite.negotiation.replica import Replica
from hvdlite.negotiation.wire import Message, ProtocolError
from hvdlite.observe.blackbox import Finding
from hvdlite.planes.base import Planes
from hvdlite.settings import Settings

_MAX_BACKLOG = 2  # one batch runs, one waits: the executor never idles and the rest goes on accumulating


class Coordinator:
    """The state of one rank between turns. No lock and no thread of its own.

    ``has_ended`` is set when no batch will be agreed any more. ``known`` is that of its `Cache`.
    """

    def __init__(
        self,
        membership: Membership,
        options: Settings,
        link: ControlLink,
        planes: Planes,
        in_flight: InFlight,
        executor: Executor,
        observer: Observer,
        on_end: Callable[[End], None],
    ) -> None:
        self._rank = membership.rank
        self._ranks = ranks = membership.ranks
        self._hosts = hosts = [host.name for host in membership.hosts]
        self._on_end = on_end
        self._report = options.report
        self._link = link
        self._planes = planes
        self._in_flight = in_flight
        self._executor = executor
        self._observer = observer
        self._replica = Replica(self._rank, in_flight)
        self.known = self._replica.cache.known
        self._negotiator = (
            Negotiator(ranks, options.cache_capacity, options.fusion_threshold) if self._rank == 0 else None
        )
        self._hold_s = options.cycle_time / 1000
        self._held_since: float | None = None
        warn_s = 0.0 if options.stall_check_disable else options.stall_check_time_seconds
        self._stall = StallWatch(warn_s, options.stall_shutdown_time_seconds)
        self._next_stall_check: float | None = None
        self._stragglers = StragglerWatch(ranks, hosts)
        self._gone: set[int] = set()  # by their numbers in the job
        self._end: End | None = None
        self.has_ended = threading.Event()

    def turn(self) -> None:
        """Takes a turn. Raises ProtocolError if the root or a peer sent an invalid message."""
        if self._observer.on_turn is not None:
            self._observer.on_turn()
        for item in self._link.receive():
            if isinstance(item, Lost):
                self._lose(item)
            elif isinstance(item, Left):
                self._gone.add(item.end.rank)
            else:
                self._take(*item)
        if new := self._in_flight.take_new():
            ready = self._replica.submit(new)
            self._observer.told_at = now = time.monotonic()
            if self._in_flight.keeps_times:
                for entry in new:
                    entry.told_at = now
            if self._negotiator is None:
                self._link.send(ready)
            else:
                self._hear(self._negotiator, 0, ready, now)
        if self._negotiator is not None and self._end is None:
            self._cut(self._negotiator)
            self._check_stalls(self._negotiator)

    def leave(self, kind: EndKind) -> None:
        """Leaves the group, once. ``kind`` is one of `ORDERLY`."""
        if self._ranks[self._rank] in self._gone:
            return
        self._gone.add(self._ranks[self._rank])
        left = self._own_end(kind, "it left")
        if self._end is not None:
            self._announce(left)  # so that others do not take its closed links for a loss
        else:
            self.end(left)

    def fail(self, cause: str) -> None:
        """Ends the group for all its ranks because of a failure on this one."""
        self._announce(self._own_end(EndKind.FAILED, cause))

    def batch_failed(self, error: HvdError) -> None:
        """Ends the group because of a batch on this rank, which may have noticed first that another one is lost."""
        if isinstance(error, PeerLost):
            self._announce(End(EndKind.LOST, error.rank, error.host, error.cause))
        else:
            self.fail(str(error))

    def end(self, end: End) -> None:
        """Ends the group for all its ranks, unless it has ended, because of ``end``, which may be another group's."""
        if self._end is not None:
            return
        if end.kind not in ORDERLY or self._negotiator is not None:
            self._announce(end)
        else:
            self._link.send(end)  # the root's answer ends the group here: it knows which batches are still run

    @property
    def ended_by(self) -> End | None:
        """Returns what ended the group, if it has ended."""
        return self._end

    @property
    def has_agreed(self) -> bool:
        """True if a turn would cut a batch, given room for one."""
        return self._negotiator is not None and self._end is None and self._negotiator.has_agreed

    @property
    def next_timer(self) -> float | None:
        """Returns when a turn is due even if no message comes, on the monotonic clock."""
        if self._held_since is None:
            return self._next_stall_check
        held_until = self._held_since + self._hold_s
        return held_until if self._next_stall_check is None else min(held_until, self._next_stall_check)

    def _take(self, sender: int, message: Message) -> None:
        if isinstance(message, Run) and self._negotiator is None:
            self._apply(message, time.monotonic())
        elif isinstance(message, Ready) and self._negotiator is not None:
            self._hear(self._negotiator, sender, message, time.monotonic())
        elif isinstance(message, End):
            if message.kind in ORDERLY:
                self._gone.add(message.rank)
            if self._negotiator is not None:
                self._announce(message)
            else:
                self._finish(message)
        else:
            raise ProtocolError(f"rank {self._ranks[sender]} sent a message that is not its to send")

    def _hear(self, negotiator: Negotiator, rank: int, ready: Ready, now: float) -> None:
        if self._end is None:
            was_last = negotiator.receive(rank, ready)
            self._observer.heard(rank, was_last, now)

    # ---- batches

    def _cut(self, negotiator: Negotiator) -> None:
        if not negotiator.has_agreed or self._executor.backlog >= _MAX_BACKLOG:
            return
        now = time.monotonic()
        if self._hold_s > 0:
            self._held_since = self._held_since or now
            if now - self._held_since < self._hold_s:
                return
            self._held_since = None
        run = negotiator.cut()
        if run is not None:
            self._link.send(run)
            named = self._stragglers.ran(run.generation, negotiator.bits_cut, self._observer.arrival, now)
            if named is not None:
                self._observer.found(Finding("straggler", *named))
            self._apply(run, now)
            self._observer.decided()

    def _apply(self, run: Run, now: float) -> None:
        works, mismatches = self._replica.apply(run)
        if mismatches:
            self._observer.refused()
        for entry, reason in mismatches:
            self._in_flight.finish((entry,), Mismatch(reason))
        observer = self._observer
        for work in works:
            work.arrival = observer.arrival
            work.told_at = observer.told_at
            work.agreed_at = now
            self._executor.put(work)

    # ---- waiting for ranks

    def _check_stalls(self, negotiator: Negotiator) -> None:
        if self._stall.interval_s is None or not negotiator.is_waiting:
            self._next_stall_check = None
            return
        now = time.monotonic()
        if self._next_stall_check is None:  # most waits end at once, so only long ones are examined
            self._next_stall_check = now + self._stall.interval_s
        if now < self._next_stall_check:
            return
        self._next_stall_check = now + self._stall.interval_s
        waiting = negotiator.waiting()
        missing = {rank for wait in waiting.values() for rank in wait.missing}
        self._observer.missing = self._ranks.index(missing.pop()) if len(missing) == 1 else UNKNOWN
        report = self._stall.check(waiting, now)
        if report.warning:
            self._observer.found(Finding("stall", report.warning, report.facts))
        if report.fatal:
            late = report.fatal[0][0]
            host = self._hosts[self._ranks.index(late)]
            self._announce(End(EndKind.STALLED, late, host, "", report.waited_s, report.fatal))

    # ---- the end

    def _lose(self, lost: Lost) -> None:
        rank = self._ranks[lost.rank]
        if rank not in self._gone:
            self._announce(End(EndKind.LOST, rank, self._hosts[lost.rank], lost.cause))

    def _own_end(self, kind: EndKind, cause: str) -> End:
        return End(kind, self._ranks[self._rank], self._hosts[self._rank], cause)

    def _announce(self, end: End) -> None:
        """Ends the group on all other ranks and here."""
        try:
            self._link.send(end)  # first: who waits here may end the process as soon as it hears of it
        finally:
            self._finish(end)

    def _finish(self, end: End) -> None:
        error = error_of(end)
        if self._end is None and end.kind is not EndKind.REMOVED:
            report(end.rank, fate_of(end), self._report)
        if end.kind not in ORDERLY:
            self._planes.abort(error)  # even after the end: a batch agreed before it may wait for the rank that is lost
        self.has_ended.set()  # the root agrees no batch after an end
        if self._end is not None:
            return
        self._end = end
        self._held_since = self._next_stall_check = None
        self._in_flight.end(error)
        self._observer.refused()
        agreed = self._executor.entries()
        self._in_flight.finish([entry for entry in self._in_flight.all() if entry not in agreed], error)
        self._on_end(end)
