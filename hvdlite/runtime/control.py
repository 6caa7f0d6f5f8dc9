"""The control links: the root of a job talks to every other rank, over ZeroMQ.

Across hosts, CURVE admits the job's ranks and nobody else. Within a host the kernel does: the root accepts connections
of its own user only, and spares every message two encryptions (50 µs of a round trip).

Both ends count their frames and check the other's count, so a lost or repeated frame is noticed. A peer that dies is
noticed by its connection closing; one that is stopped or cut off, by its ZeroMQ heartbeats, which libzmq's own thread
sends, so that a busy or hung Python program is not taken for a dead one. Links are used by the coordinator's thread
after they are made. A link is never resumed: a connection that is gone is a peer that is gone.
"""

from __future__ import annotations

import os
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import zmq

from hvdlite.core.wire import MAX_FRAME_BYTES, Message, ProtocolError, decode, encode
from hvdlite.errors import HorovodInternalError
from hvdlite.rendezvous.job import Job
from hvdlite.settings import Settings


_EVENT = struct.Struct("=hi")  # as libzmq documents it; zmq.utils.monitor would import asyncio to do the same


class Lost(NamedTuple):
    """A peer that can no longer be reached, and how that was noticed."""

    rank: int
    cause: str


class ControlLink(ABC):
    """One rank's end of the control plane."""

    sockets: tuple[zmq.Socket[bytes], ...]

    @abstractmethod
    def send(self, message: Message) -> None:
        """To the root, or from the root to every rank. Does not block."""

    @abstractmethod
    def receive(self, ready: Container[object]) -> Iterator[tuple[int, Message] | Lost]:
        """What has come on those of `sockets` that are ``ready``: messages with their sender, and peers that were lost.

        A peer's last messages come before its loss: libzmq hands them over first, so the monitor is read first.
        """

    @abstractmethod
    def close(self) -> None:
        """Sends what is queued and closes the sockets."""


class SoloLink(ControlLink):
    """The link of a job of one rank: nobody to talk to."""

    sockets = ()

    def send(self, message: Message) -> None:
        pass

    def receive(self, ready: Container[object]) -> Iterator[tuple[int, Message] | Lost]:
        return iter(())

    def close(self) -> None:
        pass


class RootLink(ControlLink):
    """Rank 0's end: a ROUTER that every other rank dials.

    A peer is known by the file descriptor of its connection, which libzmq tells for each frame and for the end of the
    connection alike.
    """

    def __init__(self, context: zmq.Context[Any], job: Job, session: int, settings: Settings, address: str) -> None:
        self._session = session
        self._size = settings.size
        self._socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        _configure(self._socket, settings)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if address.startswith("ipc:"):
            self._socket.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())
        else:
            job.serve(self._socket)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.bind(address)
        self.address = _text(self._socket.getsockopt(zmq.LAST_ENDPOINT))
        self.sockets = (self._socket, self._monitor)
        self._sent = 0
        self._received = [0] * self._size
        self._rank_of_fd: dict[int, int] = {}

    def accept(self, deadline: float) -> None:
        """Waits until every rank has said hello. Raises HorovodInternalError naming those that have not in time."""
        while len(self._rank_of_fd) < self._size - 1:
            if not self._socket.poll(_milliseconds_until(deadline)):
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

    def receive(self, ready: Container[object]) -> Iterator[tuple[int, Message] | Lost]:
        ended = list(_disconnected(self._monitor)) if self._monitor in ready else ()
        for frames in _drain(self._socket):
            yield self._open(*frames)
        for fd in ended:
            rank = self._rank_of_fd.pop(fd, None)
            if rank is not None:
                yield Lost(rank, "its connection to rank 0 ended or its heartbeats stopped")

    def close(self) -> None:
        _close(self._socket, self._monitor)

    def _open(self, *frames: bytes) -> tuple[int, Message]:
        name = frames[0]
        if len(frames) != 2 or not name.isdigit() or not 0 < int(name) < self._size:
            raise ProtocolError(f"an unknown peer {name!r} talks to rank 0")
        rank = int(name)
        self._received[rank] += 1
        return rank, decode(frames[1], self._received[rank] - 1, self._session)


class LeafLink(ControlLink):
    """Any other rank's end: a DEALER to rank 0."""

    def __init__(self, context: zmq.Context[Any], job: Job, session: int, settings: Settings, address: str) -> None:
        self._session = session
        self._socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        _configure(self._socket, settings)
        self._socket.setsockopt(zmq.ROUTING_ID, b"%d" % settings.rank)
        if not address.startswith("ipc:"):
            job.dial(self._socket)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(address)
        self.sockets = (self._socket, self._monitor)
        self._sent = 0
        self._received = 0
        self.send(None)

    def send(self, message: Message) -> None:
        self._socket.send(encode(message, self._sent, self._session))
        self._sent += 1

    def receive(self, ready: Container[object]) -> Iterator[tuple[int, Message] | Lost]:
        has_ended = self._monitor in ready and any(True for _ in _disconnected(self._monitor))
        for frames in _drain(self._socket):
            self._received += 1
            yield 0, decode(frames[0], self._received - 1, self._session)
        if has_ended:
            self._socket.linger = 0  # nobody is left to send to
            yield Lost(0, "its connection ended or its heartbeats stopped")

    def close(self) -> None:
        _close(self._socket, self._monitor)


def _configure(socket: zmq.Socket[bytes], settings: Settings) -> None:
    socket.linger = 2000
    socket.set_hwm(0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
    # Never again, in effect. Not -1: that makes libzmq drop frames that have come and are not read yet.
    socket.setsockopt(zmq.RECONNECT_IVL, 24 * 3600 * 1000)
    socket.setsockopt(zmq.HEARTBEAT_IVL, int(settings.heartbeat_interval * 1000))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(settings.peer_timeout * 1000))


def _drain(socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    """What can be read without waiting. Asking by a failed read is cheaper than pyzmq's way to ask before it."""
    while True:
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        yield frames


def _disconnected(monitor: zmq.Socket[bytes]) -> Iterator[int]:
    for frames in _drain(monitor):
        event, value = _EVENT.unpack(frames[0])
        if event == zmq.EVENT_DISCONNECTED:
            yield value


def _close(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
    socket.disable_monitor()
    monitor.close(0)
    socket.close()


def _text(endpoint: Any) -> str:
    return bytes(endpoint).rstrip(b"\0").decode()


def _milliseconds_until(deadline: float) -> int:
    return max(0, int((deadline - time.monotonic()) * 1000))
