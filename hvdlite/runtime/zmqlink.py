"""Control links across hosts: ZeroMQ over TCP with CURVE, which admits the job's ranks and nobody else.

A peer that dies is noticed by its connection closing; one that is stopped or cut off, by its ZeroMQ heartbeats, which
libzmq's own thread sends, so that a busy or hung Python program is not taken for a dead one.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any

import zmq

from hvdlite.core.wire import MAX_FRAME_BYTES, Message, ProtocolError, decode, encode
from hvdlite.errors import HorovodInternalError
from hvdlite.rendezvous.job import Job
from hvdlite.runtime.control import ControlLink, Lost
from hvdlite.runtime.wake import Wake
from hvdlite.settings import Settings

_EVENT = struct.Struct("=hi")  # as libzmq documents it; zmq.utils.monitor would import asyncio to do the same
_CLOSE_S = 2.0


class _ZmqLink(ControlLink):
    """What both ends share: one socket, its monitor, and the poll."""

    def __init__(self, socket: zmq.Socket[bytes], session: int, settings: Settings) -> None:
        self.wake = Wake()
        self._socket = socket
        self._session = session
        socket.linger = int(_CLOSE_S * 1000)
        socket.set_hwm(0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
        # Never again, in effect. Not -1: that makes libzmq drop frames that have come and are not read yet.
        socket.setsockopt(zmq.RECONNECT_IVL, 24 * 3600 * 1000)
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(settings.heartbeat_interval * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(settings.peer_timeout * 1000))
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._poller = zmq.Poller()
        for item in (socket, self._monitor, self.wake.fd):
            self._poller.register(item, zmq.POLLIN)

    def sleep(self, timeout_ms: int | None) -> None:
        if (self.wake.fd, zmq.POLLIN) in self._poller.poll(timeout_ms):
            self.wake.clear()

    def _ended(self) -> list[int]:
        """The connections that have ended; what they sent before can be read by now."""
        events = (_EVENT.unpack(frames[0]) for frames in _drain(self._monitor))
        return [value for event, value in events if event == zmq.EVENT_DISCONNECTED]

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close()
        self.wake.close()


class ZmqRootLink(_ZmqLink):
    """Rank 0's end: a ROUTER that every other rank dials.

    A peer is known by the file descriptor of its connection, which libzmq tells for each frame and for the end of the
    connection alike.
    """

    def __init__(self, context: zmq.Context[Any], job: Job, session: int, settings: Settings, address: str) -> None:
        super().__init__(context.socket(zmq.ROUTER), session, settings)
        self._size = settings.size
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        job.serve(self._socket)
        self._socket.bind(address)
        self.address = bytes(self._socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
        self._sent = 0
        self._received = [0] * self._size
        self._rank_of_fd: dict[int, int] = {}

    def accept(self, deadline: float) -> None:
        """Waits until every rank has said hello. Raises HorovodInternalError naming those that have not in time."""
        while len(self._rank_of_fd) < self._size - 1:
            if not self._socket.poll(max(0, int((deadline - time.monotonic()) * 1000))):
                missing = sorted(set(range(1, self._size)) - set(self._rank_of_fd.values()))
                raise HorovodInternalError(f"rank(s) {', '.join(map(str, missing))} did not connect to rank 0 in time")
            name, frame = self._socket.recv_multipart(copy=False)
            rank, message = self._open(name.bytes, frame.bytes)
            if message is not None:
                raise ProtocolError(f"rank {rank} sent something before its hello")
            self._rank_of_fd[int(frame.get(zmq.SRCFD))] = rank

    def send(self, message: Message) -> None:
        frame = encode(message, self._sent, self._session)
        self._sent += 1
        for rank in self._rank_of_fd.values():
            try:
                self._socket.send_multipart((b"%d" % rank, frame))
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:  # unreachable: its end of connection is already on the monitor
                    raise

    def receive(self) -> Iterator[tuple[int, Message] | Lost]:
        ended = self._ended()
        for frames in _drain(self._socket):
            yield self._open(*frames)
        for fd in ended:
            rank = self._rank_of_fd.pop(fd, None)
            if rank is not None:
                yield Lost(rank, "its connection to rank 0 ended or its heartbeats stopped")

    def _open(self, *frames: bytes) -> tuple[int, Message]:
        name = frames[0]
        if len(frames) != 2 or not name.isdigit() or not 0 < int(name) < self._size:
            raise ProtocolError(f"an unknown peer {name!r} talks to rank 0")
        rank = int(name)
        self._received[rank] += 1
        return rank, decode(frames[1], self._received[rank] - 1, self._session)


class ZmqLeafLink(_ZmqLink):
    """Any other rank's end: a DEALER to rank 0."""

    def __init__(self, context: zmq.Context[Any], job: Job, session: int, settings: Settings, address: str) -> None:
        super().__init__(context.socket(zmq.DEALER), session, settings)
        self._socket.setsockopt(zmq.ROUTING_ID, b"%d" % settings.rank)
        job.dial(self._socket)
        self._socket.connect(address)
        self._sent = 0
        self._received = 0
        self.send(None)

    def send(self, message: Message) -> None:
        self._socket.send(encode(message, self._sent, self._session))
        self._sent += 1

    def receive(self) -> Iterator[tuple[int, Message] | Lost]:
        has_ended = bool(self._ended())
        for frames in _drain(self._socket):
            self._received += 1
            yield 0, decode(frames[0], self._received - 1, self._session)
        if has_ended:
            self._socket.linger = 0  # nobody is left to send to
            yield Lost(0, "its connection ended or its heartbeats stopped")


def _drain(socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    """What can be read without waiting. Asking by a failed read is cheaper than pyzmq's way to ask before it."""
    while True:
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        yield frames
