"""Streams over connections that break anywhere: each message arrives once, in order."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.control.delivery import RECEIPT_EVERY, Delivery
from hvdlite.negotiation.messages import End, EndKind, Ready
from hvdlite.negotiation.wire import Header, Message, ProtocolError, Type, body_of, frame_of, header_of

SESSION = 7


class Pair:
    """Two streams and the connection between them, on which frames wait for `deliver`."""

    def __init__(self) -> None:
        self.ends = (Delivery(SESSION), Delivery(SESSION))
        self.on_the_way: tuple[deque[bytes], deque[bytes]] = (deque(), deque())  # by sender
        self.sent: tuple[list[Message], list[Message]] = ([], [])
        self.came: tuple[list[Message], list[Message]] = ([], [])  # by sender
        self.is_connected = True

    def send(self, end: int) -> None:
        message = Ready(0, len(self.sent[end]), ())
        self.sent[end].append(message)
        frame = self.ends[end].send(*body_of(message))
        if self.is_connected:
            self.on_the_way[end].append(frame)

    def deliver(self, sender: int) -> None:
        if not self.on_the_way[sender]:
            return
        receiver = self.ends[1 - sender]
        frame = self.on_the_way[sender].popleft()
        message = receiver.receive(header_of(frame, SESSION), frame)
        if message is not None:
            self.came[sender].append(message)
        if (receipt := receiver.receipt()) is not None:
            self.on_the_way[1 - sender].append(receipt)

    def disconnect(self) -> None:
        self.is_connected = False
        for way in self.on_the_way:
            way.clear()

    def connect(self) -> None:
        self.disconnect()
        self.is_connected = True
        for end in (0, 1):
            self.on_the_way[end].extend(self.ends[end].resume(self.ends[1 - end].received))

    def finish(self) -> None:
        self.connect()
        while any(self.on_the_way):
            self.deliver(0)
            self.deliver(1)


STEPS = st.lists(st.tuples(st.sampled_from(["send", "deliver", "disconnect", "connect"]), st.integers(0, 1)))


@given(STEPS)
def test_whatever_breaks_each_message_arrives_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    pair = Pair()
    for step, end in steps:
        if step == "send":
            pair.send(end)
        elif step == "deliver":
            pair.deliver(end)
        else:
            getattr(pair, step)()
    pair.finish()
    assert pair.came == pair.sent


def test_what_is_acknowledged_is_forgotten() -> None:
    pair = Pair()
    for _ in range(RECEIPT_EVERY - 1):
        pair.send(0)
        pair.deliver(0)
    assert not pair.on_the_way[1]
    pair.send(0)
    pair.deliver(0)
    assert len(pair.on_the_way[1]) == 1  # one receipt for all of them
    assert pair.ends[0].has_unacknowledged
    pair.deliver(1)
    assert not pair.ends[0].has_unacknowledged
    assert not any(pair.on_the_way)  # and none for a receipt


def test_an_end_is_acknowledged_at_once() -> None:
    pair = Pair()
    end = End(EndKind.LEFT, 0, "host", "it left")
    frame = pair.ends[0].send(*body_of(end))
    assert pair.ends[1].receive(header_of(frame, SESSION), frame) == end
    assert pair.ends[1].receipt() is not None
    assert pair.ends[1].receipt() is None


@pytest.mark.parametrize(
    ("number", "received"), [(3, 1), (2, 0), (2, 3)], ids=["a gap", "less than before", "what was never sent"]
)
def test_counts_that_cannot_be_are_refused(number: int, received: int) -> None:
    pair = Pair()
    for _ in range(2):
        pair.send(1)
    for _ in range(2):
        pair.send(0)
        pair.deliver(1)
        pair.deliver(0)
    pair.send(0)
    pair.deliver(0)  # acknowledges both
    frame = frame_of(Header(Type.READY, number, received), SESSION, body_of(Ready(0, 1, ()))[1])
    with pytest.raises(ProtocolError, match="came instead of|acknowledged"):
        pair.ends[1].receive(header_of(frame, SESSION), frame)
