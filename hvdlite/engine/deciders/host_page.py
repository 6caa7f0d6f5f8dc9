"""The deciders of ranks that share a host, in a group of several hosts.

They agree in the page of their host on which known tensors are *ready on the host*, and the first of them reports that
to the root for all. The root's runs count as they come, because the root answers only what was reported: a rank that
has applied all decisions of the page has found there what a run names.

Tensors that only some ranks of the host have submitted are not reported. The root must know of them when a rank joins
or describes a known tensor anew, before the cache begins a new generation, and when ranks wait for long. Then the first
rank closes the page. Each rank reports what it has submitted there and the page has not decided, and all ranks report
by messages until the first one opens the page again, once the root has answered everything that the host has reported.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from typing import Final

from hvdlite import native
from hvdlite.control.link import ControlLink
from hvdlite.control.page import ABORTED, Page
from hvdlite.engine.deciders.base import Decider, Decision, Resubmit, earliest
from hvdlite.engine.deciders.page import Reminder
from hvdlite.engine.deciders.remote import LeaderDecider
from hvdlite.engine.deciders.root import RootDecider
from hvdlite.members.membership import Membership
from hvdlite.negotiation.gate import Gate
from hvdlite.negotiation.messages import JOIN_NAME, End, Ready, Run, Tuning
from hvdlite.negotiation.wire import Message

_LOOK_S: Final = 0.5  # between looks for tensors that wait; the root hears of them at the second
_READ_S: Final = 0.1  # between readings of the page if nothing asks for one


class _Known:
    """What the runs of a generation say about its bits: those of names, and ``in_page``, those agreed on in the page.

    A list with bits beyond the page is not agreed on there, so that its tensors arrive together.
    """

    def __init__(self, names: int) -> None:
        self._most = self.in_page = (1 << names) - 1
        self.generation = 0
        self._bits: dict[str, int] = {}
        self._lists: dict[str, int] = {}  # by name: the bits of all tensors

    def apply(self, run: Run) -> None:
        if run.generation != self.generation:
            self.generation = run.generation
            self.in_page = self._most
            self._bits.clear()
            self._lists.clear()
        for response in (response for batch in run.batches for response in batch.responses):
            if response.bit >= 0 and response.name not in self._bits:
                self._bits[response.name] = response.bit
                if response.name.endswith("]"):
                    name = response.name.rpartition("[")[0]
                    self._lists[name] = bits = self._lists.get(name, 0) | 1 << response.bit
                    if bits & ~self._most:
                        self.in_page &= ~bits

    def bit_of(self, name: str) -> int:
        """Returns the bit of ``name``, or -1."""
        return self._bits.get(name, -1)


class HostPageDecider(Decider):
    """Agrees in ``page`` on what is ready on this host. ``inner`` exchanges messages with the root."""

    def __init__(self, inner: Decider, page: Page) -> None:
        self._inner = inner
        self._page = page
        self._known = _Known(page.names)  # from the runs that have counted
        self._is_open = True
        self._closings = 0
        self._pending = self._pending_blank = 0  # bits that this rank has submitted in the page, not decided there
        self._came: deque[Run | End] = deque()  # messages that have not counted
        self._read_at = 0.0  # when to read the page

    @property
    def due(self) -> float | None:  # type: ignore[override]
        return earliest(self._inner.due, self._timer if self._is_open else None)

    @property
    def has_agreed(self) -> bool:
        return self._inner.has_agreed

    def receive(self, sender: int, message: Message, now: float) -> None:
        self._inner.receive(sender, message, now)

    def submit(self, ready: Ready, now: float) -> None:
        bits, blank_bits = ready.bits, ready.blank_bits
        if self._is_open and (in_page := bits & self._known.in_page):
            self._publish(in_page, blank_bits & in_page)
            bits ^= in_page
        if bits or ready.requests:
            self._send(
                Ready(ready.generation, bits, ready.requests, blank_bits & bits, ready.blank_requests, self._closings),
                now,
            )

    def decisions(self, has_room: bool, now: float) -> Iterator[Decision]:
        is_reopened = True
        while is_reopened:
            is_reopened = False
            self._came += self._messages(has_room, now)
            if any(isinstance(message, End) for message in self._came):
                self._give_up()
            while self._came:
                message = self._came[0]
                if isinstance(message, Run) and message.generation != self._known.generation and self._is_open:
                    break  # until all ranks have reported the bits of this generation
                self._came.popleft()
                yield message
                if isinstance(message, Run):
                    self._known.apply(message)
                    if message.opens:
                        is_reopened = self._is_open = True
                        self._page.reopen(0)
                        self._read_at = 0.0
                        yield Resubmit(self._resubmit)

    def lost(self) -> None:
        self._give_up()

    def doubt(self) -> None:
        self._inner.doubt()

    def end(self, end: End) -> None:
        self._inner.end(end)

    def tune(self, tuning: Tuning) -> None:
        self._inner.tune(tuning)

    @property
    @abstractmethod
    def _timer(self) -> float | None:
        """When the page must be read, while it is open; None: never."""

    @abstractmethod
    def _messages(self, has_room: bool, now: float) -> list[Run | End]:
        """Reads the page, and returns the decisions of the root since the last call."""

    @abstractmethod
    def _send(self, ready: Ready, now: float) -> None:
        """Reports ``ready`` of this rank to the first rank of the host."""

    @abstractmethod
    def _wait(self, now: float) -> None:
        """The page has nothing to decide."""

    @abstractmethod
    def _agreed(self, bits: int, blank_bits: int, now: float) -> None:
        """``bits`` are ready on the host."""

    @abstractmethod
    def _closed(self) -> None:
        """This rank has closed the page."""

    def _publish(self, bits: int, blank_bits: int) -> None:
        self._pending |= bits
        self._pending_blank |= blank_bits
        self._page.submit(bits, blank_bits)
        self._read_at = 0.0

    def _resubmit(self, unanswered: Ready, now: float) -> None:
        """Submits what the first rank had not read when it opened the page."""
        if bits := unanswered.bits & self._known.in_page:
            self._publish(bits, unanswered.blank_bits & bits)

    def _read_page(self, now: float) -> None:
        at = earliest(self._read_at, self._timer)
        if self._is_open and ((at is not None and now >= at) or self._page.has_decision()):
            self._read_at = now + _READ_S
            self._read_on(now)

    def _read_on(self, now: float) -> None:
        while self._is_open:
            kind, bits, blank_bits, _ = self._page.next(True)
            if kind == native.DECIDED_TENSORS:
                self._pending &= ~bits
                self._pending_blank &= ~bits
                self._agreed(bits, blank_bits, now)
            elif kind == native.DECIDED_CLOSING:
                self._closings += 1
                self._is_open = False
                bits, self._pending = self._pending, 0
                blank_bits, self._pending_blank = self._pending_blank, 0
                self._send(Ready(self._known.generation, bits, (), blank_bits, 0, self._closings), now)
                self._closed()
            elif kind == ABORTED:
                self._is_open = False
            else:
                self._wait(now)
                return

    def _give_up(self) -> None:
        self._is_open = False
        self._page.abort()


class MemberPageDecider(HostPageDecider):
    """The same on the other ranks of a host. Only messages wake them, since they need not know what is ready."""

    def __init__(self, inner: Decider, page: Page) -> None:
        super().__init__(inner, page)
        self._reminder = Reminder(page)

    @property
    def _timer(self) -> float | None:
        return self._reminder.due

    def _messages(self, has_room: bool, now: float) -> list[Run | End]:
        messages = _from_root(self._inner.decisions(has_room, now))
        self._read_page(now)  # afterwards: what a run names is decided there
        return messages

    def _send(self, ready: Ready, now: float) -> None:
        self._inner.submit(ready, now)

    def _agreed(self, bits: int, blank_bits: int, now: float) -> None:
        pass

    def _closed(self) -> None:
        pass

    def _wait(self, now: float) -> None:
        self._reminder.waits(now)


class LeaderPageDecider(HostPageDecider):
    """The same on the first rank of a host, the root or a leader. It closes and opens the page."""

    def __init__(
        self, inner: RootDecider | LeaderDecider, page: Page, membership: Membership, link: ControlLink
    ) -> None:
        super().__init__(inner, page)
        self._reporter = inner
        self._link = link
        self._ranks = ranks = membership.on_this_host
        self._gate = Gate(ranks, page.names, ranks[0])
        self._sent = _Known(page.names)  # from the runs that the other ranks were sent
        self._unanswered = dict.fromkeys(ranks, 0)  # bits of their generation that were reported
        self._requested: set[str] = set()  # names that were requested and are not answered
        self._submitted_at = dict.fromkeys(ranks, 0.0)  # the latest that the page has said of each rank
        self._look_at: float | None = None
        self._waiting = 0  # bits that had waited at the last look, and still do
        self._asked = -1  # how often the page had been closed when this rank asked for the next closing
        self._is_over = False

    @property
    def _timer(self) -> float | None:
        return self._look_at

    def receive(self, sender: int, message: Message, now: float) -> None:
        if isinstance(message, Ready) and sender in self._unanswered:
            self._admit(sender, message, now)
        else:
            self._inner.receive(sender, message, now)

    def decisions(self, has_room: bool, now: float) -> Iterator[Decision]:
        while True:
            yield from super().decisions(has_room, now)
            if self._may_open:
                self._open()
            elif self._must_close:
                self._asked = self._closings
                self._page.request_closing()
                self._read_at = 0.0
            elif not (self._is_open and self._page.arm()):  # a batch may run in this thread before the next turn
                return

    def arm(self) -> bool:  # `decisions` has armed the page
        return self._is_open and self._page.has_decision()

    def _send(self, ready: Ready, now: float) -> None:
        self._admit(self._ranks[0], ready, now)

    def _admit(self, rank: int, ready: Ready, now: float) -> None:
        for sender, each in self._gate.admit(rank, ready):
            bits = self._gate.bits_of(each)
            if each.generation == self._sent.generation:
                self._unanswered[sender] |= bits
            self._requested.update(request.name for request in each.requests)
            if bits or each.requests:
                news = Ready(each.generation, bits, each.requests, each.blank_bits & bits, each.blank_requests)
                self._reporter.report(((sender, now),), news)

    def _agreed(self, bits: int, blank_bits: int, now: float) -> None:
        self._hear()
        self._waiting &= ~bits
        if self._known.generation == self._sent.generation:
            for rank in self._ranks:
                self._unanswered[rank] |= bits
        in_order = sorted(self._submitted_at.items(), key=lambda each: each[1])
        arrivals = [(rank, min(at, now) or now) for rank, at in in_order]
        self._reporter.report(arrivals, Ready(self._known.generation, bits, (), blank_bits))

    def _closed(self) -> None:
        for index in range(1, len(self._ranks)):
            self._page.ring(index)

    def _messages(self, has_room: bool, now: float) -> list[Run | End]:
        self._read_page(now)  # before: the root decides on what it is told
        messages = _from_root(self._inner.decisions(has_room, now))
        for message in messages:
            if isinstance(message, End):
                self._is_over = True
            else:
                self._answered(message)
        return messages

    def _answered(self, run: Run) -> None:
        if run.generation != self._sent.generation:
            self._unanswered = dict.fromkeys(self._ranks, 0)
            self._gate.must_close |= self._is_open
        self._sent.apply(run)
        self._gate.in_page = self._sent.in_page
        for batch in run.batches:
            for rank in self._ranks:
                self._unanswered[rank] &= ~batch.bits
            for response in batch.responses:
                self._requested.discard(response.name)
                bit = response.bit if response.bit >= 0 else self._sent.bit_of(response.name)
                for rank in self._ranks if bit >= 0 else ():
                    if not response.error or response.fails(rank):
                        self._unanswered[rank] &= ~(1 << bit)

    def _hear(self) -> None:
        for index, _, at in self._page.news:
            self._submitted_at[self._ranks[index]] = at

    def _wait(self, now: float) -> None:
        self._hear()
        if not self._page.is_waiting:
            self._look_at = None
            self._waiting = 0
        elif self._look_at is None:
            self._look_at = now + _LOOK_S
        elif now >= self._look_at:
            self._look_at = now + _LOOK_S
            still = reduce(or_, self._page.submitted())
            if self._waiting & still:
                self._gate.must_close = True
            self._waiting = still

    @property
    def _must_close(self) -> bool:
        if not self._is_open or self._asked == self._closings or self._is_over:
            return False
        return self._gate.must_close or self._has_stale

    @property
    def _may_open(self) -> bool:
        if self._is_open or self._is_over or self._came or not self._gate.is_closed:
            return False
        return not (self._has_stale or JOIN_NAME in self._requested or any(self._unanswered.values()))

    @property
    def _has_stale(self) -> bool:
        """True if a rank of this host has requested a tensor that others may submit as a bit."""
        sent = self._sent
        return any((bit := sent.bit_of(name)) >= 0 and sent.in_page >> bit & 1 for name in self._requested)

    def _open(self) -> None:
        self._gate.open(self._sent.generation)
        opening = Run(self._sent.generation, (), opens=True)
        self._link.send(opening)
        self._came.append(opening)


def _from_root(decisions: Iterable[Decision]) -> list[Run | End]:
    messages = []
    for message in decisions:
        assert isinstance(message, (Run, End))
        messages.append(message)
    return messages
