"""Decides which batches the ranks of a group run, and in which order.

Each rank has a *decider*, and the deciders of all ranks return the same runs in the same order. A turn passes the
messages of other ranks and the tensors that this rank submitted to its decider, and then takes the decisions.

The root decides for all ranks: a `RootDecider` has the negotiator, and a `RemoteDecider` on every other rank exchanges
messages with it. On one host a `PageDecider` stands before either of them. It agrees with the other ranks on tensors
that all of them know, in their page, and gives the root's messages their place among these decisions.

The root decides as soon as its executor has room for a batch, so tensors accumulate and fuse while bytes are moving.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Final, NamedTuple, TypeAlias

from hvdlite import native
from hvdlite.blackbox.format import Finding
from hvdlite.control.link import ControlLink
from hvdlite.control.page import ABORTED, BUSY, News, Page
from hvdlite.engine.observer import Observer
from hvdlite.members.membership import Membership
from hvdlite.negotiation.delays.arrival import UNKNOWN, Arrival
from hvdlite.negotiation.delays.stall import StallWatch
from hvdlite.negotiation.delays.straggler import ALL_REPORTED, StragglerWatch, Unreported
from hvdlite.negotiation.messages import BARRIER_NAME, ORDERLY, STILL_RUN, Common, End, EndKind, Ready, Run, Tuning
from hvdlite.negotiation.negotiate import Negotiator
from hvdlite.negotiation.wire import MAX_BYTES, Message, ProtocolError
from hvdlite.settings import Settings

_NOTIFY_S: Final = 0.5  # between rings of the root's bell during a wait


class Resubmit(NamedTuple):
    """A decision that closes or opens the page: this rank must pass its unanswered bits to ``take`` at once."""

    take: Callable[[Ready, float], None]


Decision: TypeAlias = Run | End | Common | Resubmit


class Decider(ABC):
    """One rank's part in the decisions of its group. It has no thread and no clock.

    Calls must not overlap; ``now`` is a time of the monotonic clock. Any thread may call `tune` at any time, and read
    ``has_agreed`` and ``due``: the time at which `decisions` must be called even if no message arrives, or None.
    """

    due: float | None = None

    @property
    def has_agreed(self) -> bool:
        """True if `decisions` would return a run when called with ``has_room``."""
        return False

    @abstractmethod
    def receive(self, sender: int, message: Message, now: float) -> None:
        """Takes a message of group index ``sender``. Raises ProtocolError for a message that no correct rank sends."""

    @abstractmethod
    def submit(self, ready: Ready, now: float) -> None:
        """Publishes the tensors that this rank has submitted."""

    @abstractmethod
    def decisions(self, has_room: bool, now: float) -> Iterable[Decision]:
        """Yields the decisions since the last call, in the order that is the same on all ranks.

        Each must be applied before the next one is taken. Without ``has_room`` for another batch, this rank does not
        decide on further tensors.
        """

    def doubt(self) -> None:  # noqa: B027, only the root can look
        """To be called when a turn takes over a call without a name: perhaps other ranks make another call."""

    def lost(self) -> None:  # noqa: B027, most need not know
        """To be called when a rank's connection ends after it has left the group."""

    def arm(self) -> bool:
        """Lets decisions of other ranks wake this rank's inbox, until `decisions` is called. Any thread.

        True if there are some already.
        """
        return False

    @abstractmethod
    def end(self, end: End) -> None:
        """Ends the group on all ranks. An `ORDERLY` end is decided like a run; any other end counts at once.

        GONE counts after all decisions that have been made. May be called again: the first end counts, and later ones
        report which ranks have left.
        """

    @abstractmethod
    def tune(self, tuning: Tuning) -> None:
        """Applies ``tuning`` on all ranks from the next run on. Raises ValueError on any rank but the root."""


def decider_of(
    membership: Membership, options: Settings, link: ControlLink, observer: Observer, page: Page | None
) -> Decider:
    """Returns the decider of this rank, whose host has ``page``. A rank alone has it for calls only."""
    if membership.size == 1:
        page = None
    if membership.rank == 0:
        root = RootDecider(membership, options, link, observer, page)
        return root if page is None else PageDecider(root, page, root)
    remote = RemoteDecider(membership, link)
    return remote if page is None else PageDecider(remote, page)


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
            if not self._has_ended:
                was_last = self._negotiator.receive(sender, message)
                self._observer.arrived(sender, was_last, now)
        elif isinstance(message, End):
            self.end(message)
        else:
            raise _unexpected(self._ranks[sender])

    def submit(self, ready: Ready, now: float) -> None:
        if not self._has_ended:
            was_last = self._negotiator.receive(0, ready)
            self._observer.arrived(0, was_last, now)

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


class RemoteDecider(Decider):
    """Sends the tensors that this rank submitted to the root, and receives the root's decisions."""

    def __init__(self, membership: Membership, link: ControlLink) -> None:
        self._ranks = membership.ranks
        self._link = link
        self._decided: list[Decision] = []

    def receive(self, sender: int, message: Message, now: float) -> None:
        if not isinstance(message, (Run, End)):
            raise _unexpected(self._ranks[sender])
        self._decided.append(message)

    def submit(self, ready: Ready, now: float) -> None:
        self._link.send(ready)

    def decisions(self, has_room: bool, now: float) -> Sequence[Decision]:
        if not (decided := self._decided):
            return ()
        self._decided = []
        return decided

    def end(self, end: End) -> None:
        if end.kind not in ORDERLY:
            self._decided.append(end)
        self._link.send(end)  # an orderly end counts when the root sends it back, after the runs that come before it

    def tune(self, tuning: Tuning) -> None:
        raise ValueError(f"only rank {self._ranks[0]} tunes this group")


class PageDecider(Decider):
    """Agrees in ``page`` on the tensors that all ranks know. For everything else ``inner`` exchanges messages.

    Decisions of the page number the messages of the root: a message counts on every rank after the same decision.
    While the page is closed, messages count in their own order, and ``inner`` gets all tensors. ``root`` is ``inner``
    at the root.
    """

    def __init__(self, inner: Decider, page: Page, root: RootDecider | None = None) -> None:
        self._inner = inner
        self.page = page
        self._root = root
        self._in_page = (1 << page.names) - 1
        self._generation = 0  # of the latest message that has counted
        self._is_open = True
        self._has_ended = False
        self._closings = 0
        self._unpublished = self._unpublished_blank = 0  # bits that wait while the page is busy
        self._messages = 0  # that have counted
        self._is_due = False  # the page has decided that the next message counts now
        self._came: deque[Run | End] = deque()  # messages that have not counted
        self._notify_at: float | None = None

    @property
    def due(self) -> float | None:  # type: ignore[override]
        inner, notify_at = self._inner.due, self._notify_at
        if inner is None or notify_at is None:
            return inner if notify_at is None else notify_at
        return min(inner, notify_at)

    @property
    def has_agreed(self) -> bool:
        return self.page.is_held_back or self._inner.has_agreed

    def receive(self, sender: int, message: Message, now: float) -> None:
        self._inner.receive(sender, message, now)

    def submit(self, ready: Ready, now: float) -> None:
        bits = ready.bits
        if self._is_open and (in_page := bits & self._in_page):
            self._publish(in_page, ready.blank_bits & in_page)
            bits ^= in_page
        if bits or ready.requests:
            self._inner.submit(
                Ready(
                    ready.generation,
                    bits,
                    ready.requests,
                    ready.blank_bits & bits,
                    ready.blank_requests,
                    self._closings,
                ),
                now,
            )

    def _resubmit(self, unanswered: Ready, now: float) -> None:
        bits = unanswered.bits & self._in_page
        blank_bits = unanswered.blank_bits & bits
        if not self._is_open:
            requests = unanswered.requests
            self._inner.submit(Ready(unanswered.generation, bits, requests, blank_bits, 0, self._closings), now)
        elif bits:
            self._publish(bits, blank_bits)

    def _publish(self, bits: int, blank_bits: int) -> None:
        self._unpublished |= bits
        self._unpublished_blank |= blank_bits
        if self.page.submit(self._unpublished, self._unpublished_blank):
            self._unpublished = self._unpublished_blank = 0

    def decisions(self, has_room: bool, now: float) -> Iterator[Decision]:
        for message in self._inner.decisions(has_room, now):
            assert isinstance(message, (Run, End))
            if self._has_ended or (isinstance(message, End) and message.kind not in STILL_RUN):
                self._has_ended = True
                self.page.abort()
                yield from self._ends_that_came()
                yield message
            else:
                self._came.append(message)
        # A rank that is gone decides no more. The others have read everything from it once nothing is left to apply.
        is_last = bool(self._came) and isinstance(self._came[-1], End) and self._came[-1].kind is EndKind.GONE
        while not self._has_ended:
            if self._is_due or not self._is_open:
                if not self._came:
                    self._notify_at = None
                    return
                self._is_due = False
                self._messages += 1
                message = self._came.popleft()
                self._has_ended = isinstance(message, End)
                yield message
                if isinstance(message, Run):
                    self._generation = message.generation
                    if message.opens:
                        self.page.reopen(self._messages)
                        self._is_open = True
                        yield Resubmit(self._resubmit)
                continue
            if self._unpublished:
                self._publish(0, 0)
            kind, bits, blank_bits, carried_bits = self.page.next(has_room or is_last)
            if kind > native.DECIDED_NOTHING:
                self._notify_at = None
            if self._root is not None and kind >= 0:
                self._root.arrived(self.page.news, now)
            if kind == native.DECIDED_TENSORS:
                if self._root is not None:
                    self._root.ran(self._generation, bits, self._root.arrival, now)
                yield Common(bits, blank_bits, carried_bits)
            elif kind == native.DECIDED_MESSAGE:
                self._is_due = True
            elif kind == native.DECIDED_CLOSING:
                self._closings += 1
                self._is_open = False
                self._unpublished = self._unpublished_blank = 0  # the root gets all unanswered bits
                yield Resubmit(self._resubmit)
            elif kind == ABORTED or (is_last and kind != BUSY):
                self._has_ended = True
                self.page.abort()
                yield from self._ends_that_came()
            elif kind == BUSY:
                return
            elif self._root is None:
                self._notify_root(now)
                return
            elif not self._root.asks(self.page, self._closings):
                return

    def _notify_root(self, now: float) -> None:
        """Rings the root's bell twice a second during a wait: perhaps it is the late rank, and takes no turn."""
        if not self.page.is_waiting:
            self._notify_at = None
        elif self._notify_at is None or now >= self._notify_at:
            if self._notify_at is not None:
                self.page.ring_root()
            self._notify_at = now + _NOTIFY_S

    def _ends_that_came(self) -> list[Decision]:
        """Takes the ends that wait for their place. They count before one that counts at once, and may be its cause."""
        ends: list[Decision] = [message for message in self._came if isinstance(message, End)]
        self._came.clear()
        return ends

    def called(self, bits: int, arrival: Arrival, now: float, unreported: Unreported) -> None:
        """Reports a call that has run ``bits`` to the root's watch for late ranks; see `StragglerWatch.ran`."""
        if self._root is not None:
            self._root.ran(self._generation, bits, arrival, now, unreported)

    def doubt(self) -> None:
        self._inner.doubt()

    def lost(self) -> None:
        self.page.abort()

    def arm(self) -> bool:
        return not self._has_ended and self.page.arm()

    def end(self, end: End) -> None:
        self._inner.end(end)

    def tune(self, tuning: Tuning) -> None:
        self._inner.tune(tuning)


def _unexpected(rank: int) -> ProtocolError:
    return ProtocolError(f"rank {rank} sent a message that it must not send")
