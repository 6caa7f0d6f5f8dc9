"""What a peer sent before it closed is read, however it closed."""

from __future__ import annotations

import socket

import pytest

from hvdlite.runtime.frames import FrameSocket


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
