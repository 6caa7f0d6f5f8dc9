"""Delivers messages between this rank and one peer exactly once, over one connection after another.

Each direction numbers its messages. Every frame has the number of messages that its sender has received, and messages
that the peer has not acknowledged are kept. When a connection ends, frames in flight are forgotten; on the next one
both ends first exchange their counts (`hvdlite.control.greeting`), then send what is missing. A frame that arrives
again, because only its acknowledgement was lost, is recognised by its number. Where messages go one way only, a RECEIPT
acknowledges them from time to time.

Something between the hosts may damage the same message each time. So the root counts (`Attempts`), and gives a peer up
after many fruitless connections in a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from hvdlite.negotiation.wire import Header, Message, ProtocolError, Type, frame_of, message_of

RECEIPT_EVERY = 64  # messages without an answer
MAX_FRUITLESS = 30  # connections; a leaf makes ten a second, and any that lasts long enough for one message counts anew


class Delivery:
    """One end. Invariant: ``_kept`` are the messages that were sent last, those that the peer may not have."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._kept: deque[tuple[Type, bytes]] = deque()
        self.sent = 0
        self._acknowledged = 0  # of those received here: what the peer knows
        self._must_acknowledge = False
        self.received = 0

    @property
    def has_unacknowledged(self) -> bool:
        """True if the peer may be missing something."""
        return bool(self._kept)

    def send(self, kind: Type, body: bytes) -> bytes:
        """Numbers and keeps a message. Returns its frame, for the current connection if there is one."""
        self._kept.append((kind, body))
        self.sent += 1
        return self._frame(kind, self.sent - 1, body)

    def receive(self, header: Header, frame: bytes) -> Message | None:
        """The message in ``frame``; None for a RECEIPT or a repetition. Raises ProtocolError."""
        self._forget(header.received)
        if header.kind == Type.RECEIPT or header.number < self.received:
            return None
        if header.number > self.received:
            raise ProtocolError(f"control frame {header.number} came instead of {self.received}")
        message = message_of(header, frame)
        self.received += 1
        if header.kind == Type.END or self.received - self._acknowledged >= RECEIPT_EVERY:
            self._must_acknowledge = True  # after an END nothing may follow that would acknowledge it
        return message

    def receipt(self) -> bytes | None:
        """A frame that only acknowledges, if one is due."""
        return self._frame(Type.RECEIPT, self.sent, b"") if self._must_acknowledge else None

    def resume(self, received: int) -> Iterator[bytes]:
        """The frames for a new connection to the peer, which has received so many. Raises ProtocolError."""
        self._forget(received)
        first = self.sent - len(self._kept)
        for number, (kind, body) in enumerate(self._kept, first):
            yield self._frame(kind, number, body)

    def _frame(self, kind: Type, number: int, body: bytes) -> bytes:
        self._acknowledged = self.received
        self._must_acknowledge = False
        return frame_of(Header(kind, number, self.received), self._session, body)

    def _forget(self, received: int) -> None:
        unknown = self.sent - received
        if not 0 <= unknown <= len(self._kept):
            first = self.sent - len(self._kept)
            raise ProtocolError(f"{received} control frames are acknowledged, which is not within {first}..{self.sent}")
        while len(self._kept) > unknown:
            self._kept.popleft()


class Attempts:
    """Counts connections in a row that began with messages waiting and none delivered since the one before."""

    def __init__(self) -> None:
        self.fruitless = 0
        self._passed = (0, 0)

    def begin(self, there: int, passed_there: int, back: int, passed_back: int) -> None:
        """Counts a new connection, given how many messages were sent either way so far and how many of them arrived."""
        passed = (passed_there, passed_back)
        waits = passed != (there, back)
        self.fruitless = self.fruitless + 1 if waits and passed == self._passed else 0
        self._passed = passed
