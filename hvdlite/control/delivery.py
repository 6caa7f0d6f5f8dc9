"""Delivers messages between this rank and one peer exactly once, over one connection after another.

Each direction numbers its messages. Every frame contains the number of messages that its sender has received, and a
sender keeps messages until they are acknowledged. On a new connection both ends exchange their counts
(`hvdlite.control.greeting`), then send the missing messages. A repeated message is recognised by its number. If
messages flow in one direction only, a RECEIPT acknowledges some of them at a time.

The network may damage the same message each time. So the root counts (`Attempts`), and gives up a peer after many
fruitless connections in a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from hvdlite.negotiation.wire import Header, Message, ProtocolError, Type, frame_of, message_of

RECEIPT_EVERY = 64  # messages without an answer
MAX_FRUITLESS = 30  # connections in a row without a message; a leaf makes ten a second


class Delivery:
    """One end. Invariant: ``_kept`` has the last messages, those that the peer may not have."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._kept: deque[tuple[Type, bytes]] = deque()
        self.sent = 0
        self._acknowledged = 0  # the last count of received messages that the peer got
        self._must_acknowledge = False
        self.received = 0

    @property
    def has_unacknowledged(self) -> bool:
        """True if the peer may lack messages."""
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
        """The frames for a new connection to the peer, which has ``received`` messages. Raises ProtocolError."""
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
    """Counts connections in a row that began with waiting messages, none of which the previous one had delivered."""

    def __init__(self) -> None:
        self.fruitless = 0
        self._passed = (0, 0)

    def begin(self, there: int, passed_there: int, back: int, passed_back: int) -> None:
        """Counts a new connection, given how many messages were sent and have arrived, there and back."""
        passed = (passed_there, passed_back)
        waits = passed != (there, back)
        self.fruitless = self.fruitless + 1 if waits and passed == self._passed else 0
        self._passed = passed
