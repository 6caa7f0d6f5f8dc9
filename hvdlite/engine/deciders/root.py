"""The root's decider."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from hvdlite.blackbox.format import Finding
from hvdlite.control.link import ControlLink
from hvdlite.control.page import News, Page
from hvdlite.engine.deciders.base import Arrived, Decider, Decision, unexpected
from hvdlite.engine.observer import Observer
from hvdlite.members.membership import Membership
from hvdlite.negotiation.delays.arrival import UNKNOWN, Arrival
from hvdlite.negotiation.delays.stall import StallWatch
from hvdlite.negotiation.delays.straggler import ALL_REPORTED, StragglerWatch, Unreported
from hvdlite.negotiation.messages import BARRIER_NAME, ORDERLY, End, EndKind, Ready, Run, Tuning
from hvdlite.negotiation.negotiate import Negotiator
from hvdlite.negotiation.wire import MAX_BYTES, Message
from hvdlite.settings import Settings


class RootDecider(Decider):
    """Decides for all ranks of the group, and watches for stalls and for ranks that are late."""

    def __init__(
        self,
        membership: Membership,
        options: Settings,
        link: ControlLink,
        observer: Observer,
        page: Page | None = None,
    ) -> None:
        self._ranks = ranks = membership.ranks
        self._hosts = hosts = [host.name for host in membership.hosts]
        self._link = link
        self._page = page
        self._messages = 0  # that have their place among the decisions of the page
        self._asked = -1  # how often the page had been closed when this rank asked for the next closing
        self._observer = observer
        tuning = Tuning(min(options.fusion_threshold, MAX_BYTES), options.cycle_time / 1000)
        self._negotiator = Negotiator(ranks, options.cache_capacity, tuning, 0 if page is None else page.names)
        self._held_until: float | None = None
        warn_s = 0.0 if options.stall_check_disable else options.stall_check_time_seconds
        self._stall = StallWatch(warn_s, options.stall_shutdown_time_seconds)
        self._next_stall_check: float | None = None
        self._stragglers = StragglerWatch(ranks, hosts)
        self._has_ended = False
        self._ends: list[End] = []

    @property
    def has_agreed(self) -> bool:
        return not self._has_ended and self._negotiator.has_agreed

    def receive(self, sender: int, message: Message, now: float) -> None:
        if isinstance(message, Ready):
            self.report(((sender, now),), message)
        elif isinstance(message, End):
            self.end(message)
        else:
            raise unexpected(self._ranks[sender])

    def submit(self, ready: Ready, now: float) -> None:
        self.report(((0, now),), ready)

    def report(self, arrivals: Sequence[Arrived], ready: Ready) -> None:
        """Takes what each rank of ``arrivals`` has submitted."""
        if not self._has_ended:
            for rank, at in arrivals:
                was_last = self._negotiator.receive(rank, ready)
                self._observer.arrived(rank, was_last, at)

    def decisions(self, has_room: bool, now: float) -> Sequence[Decision]:
        decided: Sequence[Decision] = ()
        if not self._has_ended:
            negotiator, page = self._negotiator, self._page
            if has_room and negotiator.has_agreed and not (negotiator.tuning.hold_s and self._holds_back(now)):
                self._held_until = None
                decided = (self._cut(now),)
            if self._stall.interval_s is not None:
                if negotiator.is_waiting or (page is not None and page.is_waiting):
                    self._check_stalls(now)
                else:
                    self._next_stall_check = None
            due = self._held_until if has_room else None  # without room: the executor wakes the coordinator later
            if due is None or (self._next_stall_check is not None and self._next_stall_check < due):
                due = self._next_stall_check
            self.due = due
        if self._has_ended:
            decided = [*decided, *self._ends]
            self._ends.clear()
            self.due = None
        return decided

    def end(self, end: End) -> None:
        self._has_ended = True
        self._ends.append(end)
        if end.kind in ORDERLY:
            self._announce()
        self._link.send(end)  # before the waits on this rank end, after which the program may exit

    def tune(self, tuning: Tuning) -> None:
        self._negotiator.tuning = tuning

    def _holds_back(self, now: float) -> bool:
        if self._held_until is None:
            self._held_until = now + self._negotiator.tuning.hold_s
        return now < self._held_until

    def _cut(self, now: float) -> Run:
        negotiator = self._negotiator
        run = negotiator.cut()
        self._announce()  # first: a rank that opens the page reads it next
        self._link.send(run)
        self.ran(run.generation, negotiator.bits_cut, self.arrival, now)
        return run

    def _announce(self) -> None:
        if self._page is not None:
            self._messages += 1
            self._page.announce(self._messages)

    def doubt(self) -> None:
        self._negotiator.doubt()

    def asks(self, page: Page, closings: int) -> bool:
        """Asks for the closing of ``page`` after ``closings`` earlier ones if it must be closed.

        To be called when ``page`` has nothing to decide. True if it may have now.
        """
        negotiator = self._negotiator
        if negotiator.has_stale is not page.is_watched:
            page.watch(negotiator.has_stale)
            if page.is_watched:
                return True
        if closings == self._asked or not negotiator.must_close(lambda: reduce(or_, page.submitted())):
            return False
        self._asked = closings
        page.request_closing()
        return True

    @property
    def arrival(self) -> Arrival | None:
        """What has arrived since the last decision."""
        return self._observer.arrival

    def ran(
        self, generation: int, bits: int, arrival: Arrival | None, now: float, unreported: Unreported = ALL_REPORTED
    ) -> None:
        """Reports a decision to run ``bits`` to the watch for late ranks; see `StragglerWatch.ran`."""
        bits &= ~self._negotiator.signed  # a step has any number of them, and of barriers
        if (barrier := self._negotiator.bit_of(BARRIER_NAME)) >= 0:
            bits &= ~(1 << barrier)
        named = self._stragglers.ran(generation, bits, arrival, now, unreported)
        if named is not None:
            self._observer.found(Finding("straggler", named.text, named._asdict()))

    def arrived(self, news: Sequence[News], now: float) -> None:
        """Reports to the observer what ranks have published in the page: see `Page`."""
        for rank, was_last, at in news:
            self._observer.arrived(rank, was_last, min(at, now))  # some came after this turn had begun

    def _check_stalls(self, now: float) -> None:
        interval_s = self._stall.interval_s
        assert interval_s is not None
        if self._next_stall_check is None:  # most waits are short, so the first check comes after an interval
            self._next_stall_check = now + interval_s
        if now < self._next_stall_check:
            return
        self._next_stall_check = now + interval_s
        in_page: Sequence[int] = () if self._page is None else self._page.submitted()
        if signed := self._negotiator.signed:  # a call without a name has one that is its own once the page is closed
            if any(bits & signed for bits in in_page):
                self._negotiator.doubt()
            in_page = [bits & ~signed for bits in in_page]
        waiting = self._negotiator.waiting(in_page)
        missing = {rank for wait in waiting.values() for rank in wait.missing}
        self._observer.missing = self._ranks.index(missing.pop()) if len(missing) == 1 else UNKNOWN
        report = self._stall.check(waiting, now)
        if report.warning:
            self._observer.found(Finding("stall", report.warning, report.facts._asdict()))
        if report.fatal:
            late = report.fatal[0][0]
            host = self._hosts[self._ranks.index(late)]
            self.end(End(EndKind.STALLED, late, host, "", report.waited_s, report.fatal))
