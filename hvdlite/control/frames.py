"""Frames over a connected packet socket, without ever blocking.

A frame is sent as packets of a flag, 1 if more follow, and a piece. Packets that the kernel does not accept are queued,
so two peers that send much to each other cannot deadlock.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from contextlib import suppress

from hvdlite.errors import ENDED
from hvdlite.negotiation.wire import MAX_FRAME_BYTES, ProtocolError
from hvdlite.net.poll import comes, wait_readable
from hvdlite.scope import Scope

_PIECE_BYTES = 64 << 10
_LAST, _MORE = b"\0", b"\1"


class FrameSocket:
    """One connection (``SOCK_SEQPACKET``). Takes over ``link`` and makes it non-blocking.

    `receive` sets ``has_ended`` when the peer is gone.
    """

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self._socket = link
        self._pieces: list[bytes] = []
        self._unread_bytes = 0
        self._unsent: deque[bytes] = deque()
        self.has_ended = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, frame: bytes) -> bool:
        """Queues ``frame``; returns as `flush`. Does nothing once the peer is gone, which `receive` reports."""
        while len(frame) > _PIECE_BYTES:
            self._unsent.append(_MORE + frame[:_PIECE_BYTES])
            frame = frame[_PIECE_BYTES:]
        self._unsent.append(_LAST + frame)
        return self.flush()

    def flush(self) -> bool:
        """Sends as much of the queue as the kernel accepts. False if that is not all: call it again on POLLOUT."""
        try:
            while self._unsent:
                self._socket.send(self._unsent[0], socket.MSG_NOSIGNAL)
                self._unsent.popleft()
        except BlockingIOError:
            return False
        except OSError:  # the peer is gone; `receive` still returns its last frames, then reports the end
            self._unsent.clear()
        return True

    def send_descriptors(self, text: bytes, fds: list[int]) -> None:
        """Sends ``text`` with ``fds`` as one packet. Does nothing once the peer is gone. To be called before `send`."""
        with suppress(OSError):
            socket.send_fds(self._socket, [_LAST + text], fds)

    def receive_descriptors(self, count: int, scope: Scope) -> tuple[bytes, list[int]]:
        """Waits for what `send_descriptors` sent. The caller closes the ``count`` descriptors, if there are any.

        Raises OSError if the peer is gone, or does not send them in ``scope``, or this process can have no more.
        """
        wait_readable(self._socket, scope)
        packet, fds, _, _ = socket.recv_fds(self._socket, _PIECE_BYTES, count, socket.MSG_CMSG_CLOEXEC)
        if not packet or len(fds) != (count if packet[1:] else 0):
            for fd in fds:
                os.close(fd)
            raise OSError(f"{len(fds)} of {count} descriptors came" if packet else ENDED)
        return packet[1:], fds

    def may_receive(self) -> bool:
        """True if `receive` would find data or the end of the connection."""
        return comes(self._socket, select.POLLIN)

    def receive(self) -> bytes | None:
        """The next frame; None if it is incomplete. Raises ProtocolError for an invalid one."""
        try:
            packet = self._socket.recv(1 + _PIECE_BYTES)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # The peer closed without reading everything. Linux reports that once, before the packets that had arrived.
            return self.receive()
        except OSError:
            packet = b""
        if not packet:
            self.has_ended = True
            return None
        self._pieces.append(packet[1:])
        self._unread_bytes += len(packet)
        if self._unread_bytes > MAX_FRAME_BYTES:
            raise ProtocolError(f"a control frame is longer than {MAX_FRAME_BYTES} bytes")
        if packet[0]:
            if len(packet) <= _PIECE_BYTES:
                raise ProtocolError("a control frame has a piece that is short and not the last")
            return None
        frame = b"".join(self._pieces)
        self._pieces.clear()
        self._unread_bytes = 0
        return frame

    def close(self) -> None:
        self._socket.close()
