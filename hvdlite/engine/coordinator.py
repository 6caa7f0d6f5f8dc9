"""A rank's part in the negotiation: submits new tensors, and queues agreed batches for the executor.

A *turn* receives the messages of other ranks, submits the new tensors of this rank to the decider, and applies the
decisions: it queues the batches of a `Run`, and ends the group on this rank at an `End`. `hvdlite.engine.deciders`
explains who decides, and `hvdlite.groups.group` which thread takes a turn. Turns never overlap.

Every rank of a group receives its end as an `End`; if there are several, the first one counts. If a rank left, all
ranks still run the batches that were agreed before; if a rank was lost or failed, every rank aborts its planes.

A process that exits without leaving is lost to its peers. But if it has run everything that it had agreed to, it says
so before: then it is *gone*, and the others still run what was agreed, which does not need it.

Ranks are group indices here. An `End`, and every text for users, has ranks by their numbers in the job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hvdlite.control.link import ControlLink, Lost
from hvdlite.control.page import Page
from hvdlite.engine.calls import Calls
from hvdlite.engine.deciders.base import Resubmit
from hvdlite.engine.deciders.choose import decider_of
from hvdlite.engine.deciders.page import PageDecider
from hvdlite.engine.executor import Executor
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.errors import ENDED, HvdError, Mismatch, PeerLost
from hvdlite.launched_by.report import report
from hvdlite.members.membership import Membership
from hvdlite.negotiation.end_messages import error_of, fate_of
from hvdlite.negotiation.messages import ORDERLY, STILL_RUN, End, EndKind, Tuning
from hvdlite.negotiation.replica import Replica
from hvdlite.negotiation.wire import ProtocolError
from hvdlite.planes.base import Planes
from hvdlite.settings import Settings
from hvdlite.tensors.device import CPU

_MAX_BACKLOG = 2  # one batch runs, one waits: the executor never idles, and further tensors accumulate and fuse


class Coordinator:
    """The state of one rank between turns. It has no lock and no thread.

    ``decider`` also answers between turns. ``due`` is when batches that still run are aborted, on the monotonic clock;
    None: never; any thread may read it. ``has_ended`` is set once no more batches will be agreed. ``known`` and
    ``unnamed`` are those of `Cache`. ``on_end`` is called once, in a turn, with what ended the group.
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
        page: Page | None = None,
    ) -> None:
        self._number = membership.number
        self._ranks = membership.ranks
        self._hosts = [host.name for host in membership.hosts]
        self._host = self._hosts[membership.rank]
        self._leader = membership.on_this_host[0]
        self._planes = planes
        self._patience_s = options.peer_timeout
        self.due: float | None = None
        self._on_end = on_end
        self._report = options.report
        self._link = link
        self._in_flight = in_flight
        self._executor = executor
        self._observer = observer
        self.decider = decider_of(membership, options, link, observer, page)
        self._replica = Replica(membership.rank, in_flight)
        self.known = self._replica.cache.known
        self.unnamed = self._replica.cache.unnamed
        self.calls: Calls | None = None
        if page is not None and planes[CPU.kind].name in ("shm", "local"):  # they add in the same order
            called = self.decider.called if isinstance(self.decider, PageDecider) else None
            self.calls = Calls(page, in_flight, self._replica, observer, called, link.inbox.wake.set)
        self._gone: set[int] = set()  # numbers in the job of the ranks that have left
        self._exiting: set[int] = set()  # indices of the peers that owe nothing, and whose processes are about to exit
        self._end: End | None = None
        self.has_ended = threading.Event()

    def turn(self) -> None:
        """Takes a turn. Raises ProtocolError if the root or a peer sent an invalid message."""
        observer, decider = self._observer, self.decider
        if observer.on_turn is not None:
            observer.on_turn()
        for item in self._link.receive():
            if isinstance(item, Lost):
                self._lose(item)
            else:
                sender, message = item
                if isinstance(message, End):
                    if message.kind is EndKind.EXITED:
                        self._expect_exit(sender, message)
                        continue
                    if message.kind in ORDERLY:
                        self._gone.add(message.rank)
                decider.receive(sender, message, time.monotonic())
        new = self._in_flight.take_new()
        if self.calls is not None and self.calls.settle():
            decider.doubt()
        now = time.monotonic()
        if new:
            ready = self._replica.submit(new)
            observer.sent_at = now
            if self._in_flight.keeps_times:
                for entry in new:
                    entry.sent_at = now
            decider.submit(ready, now)
        self._apply_decisions(now)
        if self.due is not None and now >= self.due:
            self.due = None
            assert self._end is not None
            self._executor.abort(error_of(self._end))

    def leave(self, kind: EndKind) -> None:
        """Leaves the group, once. ``kind`` is one of `ORDERLY`."""
        if self._number not in self._gone:
            self._gone.add(self._number)
            # Even after the end: otherwise the other ranks would take the closed links of this rank for a loss.
            self._end_all(self._own_end(kind, "it left"))

    def exit(self) -> None:
        """Informs the peers that this rank has run all that it had submitted, and that its process is about to exit."""
        self._link.send(self._own_end(EndKind.EXITED, ENDED))

    def fail(self, cause: str) -> None:
        """Ends the group on all ranks because of a failure on this rank."""
        self._end_all(self._own_end(EndKind.FAILED, cause))

    def batch_failed(self, error: HvdError) -> None:
        """Ends the group on all ranks because a batch failed here; a `PeerLost` blames the lost rank, not this one."""
        if isinstance(error, PeerLost):
            self._end_all(End(EndKind.LOST, error.rank, error.host, error.cause))
        else:
            self.fail(str(error))

    def end(self, end: End) -> None:
        """Ends the group on all ranks, unless it has ended. ``end`` may come from another group.

        A rank that is gone there counts as lost here: it may be no member, so this group may still agree on batches.
        """
        if self._end is None:
            self._end_all(end._replace(kind=EndKind.LOST) if end.kind is EndKind.GONE else end)

    @property
    def tuning(self) -> Tuning | None:
        """The tuning that the root has chosen; None before the first run. Any thread may read it."""
        return self._replica.tuning

    @property
    def ended_by(self) -> End | None:
        """The end that ended the group, or None."""
        return self._end

    # ---- batches

    def _apply_decisions(self, now: float) -> None:
        observer = self._observer
        for decision in self.decider.decisions(self._executor.backlog < _MAX_BACKLOG, now):
            if isinstance(decision, End):
                self._finish(decision)
                continue
            if self._end is not None:  # an end that counts at once may overtake a run
                continue
            if isinstance(decision, Resubmit):
                decision.take(self._replica.unanswered(), now)
                continue
            if self.calls is not None:
                self.calls.count()
            works, mismatches = self._replica.apply(decision)
            if mismatches:
                observer.refused()
            for entry, reason in mismatches:
                self._in_flight.finish((entry,), Mismatch(reason))
            for work in works:
                work.arrival = observer.arrival
                work.sent_at = observer.sent_at
                work.agreed_at = now
                self._executor.put(work)
            observer.decided()

    # ---- the end

    def _lose(self, lost: Lost) -> None:
        rank = self._ranks[lost.rank]
        if rank in self._gone:
            self.decider.lost()
        else:
            kind = EndKind.GONE if lost.rank in self._exiting else EndKind.LOST
            self.decider.end(End(kind, rank, self._hosts[lost.rank], lost.cause))
            if kind is EndKind.GONE and not self._notices_losses(lost.rank):
                self.due = time.monotonic() + self._patience_s

    def _notices_losses(self, gone: int) -> bool:
        """True if a batch that still runs fails soon when a further rank is lost, although ``gone`` reports nothing."""
        if gone not in (0, self._leader):  # another rank, which this one or the root is still connected with
            return True
        return all(plane.name in ("ring", "zmq") for plane in self._planes.values())  # by their connections

    def _expect_exit(self, sender: int, end: End) -> None:
        if end.rank != self._ranks[sender]:
            raise ProtocolError(f"rank {self._ranks[sender]} sent the exit of rank {end.rank}")
        self._exiting.add(sender)

    def _own_end(self, kind: EndKind, cause: str) -> End:
        return End(kind, self._number, self._host, cause)

    def _end_all(self, end: End) -> None:
        """Ends the group on all ranks; on this rank even if sending the end fails."""
        try:
            self.decider.end(end)
        finally:
            self._apply_decisions(time.monotonic())

    def _finish(self, end: End) -> None:
        error = error_of(end)
        if self._end is None and end.kind is not EndKind.REMOVED:
            report(end.rank, fate_of(end), self._report)
        if end.kind not in STILL_RUN:
            self._executor.abort(error)  # even after the end: a batch agreed earlier may wait for the lost rank
        self.has_ended.set()  # the root agrees no batch after an end
        if self._end is not None:
            return
        self._end = end
        self._in_flight.end(error)
        self._observer.refused()
        agreed = self._executor.entries()
        self._in_flight.finish([entry for entry in self._in_flight.all() if entry not in agreed], error)
        self._on_end(end)
