"""All that a peer sent before it closed is read, however it closed."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from hvdlite.control.frames import FrameSocket
from hvdlite.negotiation.wire import ProtocolError
from tests.harness.crowded import crowded


@pytest.mark.parametrize("is_unread", [False, True], ids=["having read all", "with something unread"])
def test_the_last_frames_of_a_peer_that_closed_are_read(is_unread: bool) -> None:
    near, far = map(FrameSocket, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    if is_unread:
        near.send(b"never read")
    far.send(b"first")
    far.send(b"last")
    far.close()
    assert [near.receive(), near.receive()] == [b"first", b"last"]
    assert not near.has_ended
    assert near.receive() is None
    assert near.has_ended
    near.close()


def test_a_frame_of_many_small_pieces_is_refused_at_the_first() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with far, closing(FrameSocket(near)) as link:
        far.send(b"\1")
        with pytest.raises(ProtocolError, match="short and not the last"):
            link.receive()


def test_what_may_be_received_is_known_of_any_descriptor() -> None:
    with crowded():
        near, far = map(FrameSocket, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        with closing(near), closing(far):
            assert not near.may_receive()
            far.send(b"frame")
            assert near.may_receive()
