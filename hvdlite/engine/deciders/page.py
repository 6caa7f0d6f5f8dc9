"""The decider of a rank whose group is on one host."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from hvdlite import native
from hvdlite.control.page import ABORTED, BUSY, Page
from hvdlite.engine.deciders.base import Decider, Decision, Resubmit
from hvdlite.engine.deciders.root import RootDecider
from hvdlite.negotiation.delays.arrival import Arrival
from hvdlite.negotiation.delays.straggler import Unreported
from hvdlite.negotiation.messages import STILL_RUN, Common, End, EndKind, Ready, Run, Tuning
from hvdlite.negotiation.wire import Message

_NOTIFY_S: Final = 0.5  # between rings of the root's bell during a wait


class Reminder:
    """Rings the bell of the first rank of ``page`` twice a second while this rank waits there.

    Perhaps that is the late rank, and has no reason of its own to take a turn. ``due`` is when `waits` must be called.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self.due: float | None = None

    def waits(self, now: float) -> None:
        """This rank has found nothing to decide."""
        if not self._page.is_waiting:
            self.due = None
        elif self.due is None or now >= self.due:
            if self.due is not None:
                self._page.ring(0)
            self.due = now + _NOTIFY_S


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
        self._reminder = Reminder(page)

    @property
    def due(self) -> float | None:  # type: ignore[override]
        due, own = self._inner.due, self._reminder.due
        if due is None or own is None:
            return own if due is None else due
        return min(due, own)

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
                    self._reminder.due = None
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
                self._reminder.due = None
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
                self._reminder.waits(now)
                return
            elif not self._root.asks(self.page, self._closings):
                return

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
