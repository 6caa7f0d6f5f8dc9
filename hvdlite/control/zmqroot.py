"""Rank 0's end of the control links across hosts: a ROUTER that every other rank dials.

The ROUTER gives a connection a routing id; the hello contains which rank's connection it is. The monitor reports its
end by file descriptor, which the next connection may reuse. So events are read in order, and a descriptor is open only
between the event that opens it and the one that closes it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import zmq

from hvdlite.control.delivery import MAX_FRUITLESS, Attempts, Delivery
from hvdlite.control.greeting import Hello, fits, read_hello, refusal, welcome
from hvdlite.control.link import Lost, Received
from hvdlite.control.liveness_probe import LivenessProbe
from hvdlite.control.zmqlink import ZmqLink
from hvdlite.errors import HorovodInternalError
from hvdlite.members.membership import Membership
from hvdlite.members.ranges import shortened
from hvdlite.negotiation.wire import Header, Message, ProtocolError, Type, body_of, header_of
from hvdlite.net import curve
from hvdlite.net.listener import Listener
from hvdlite.net.listening import LOOPBACK, endpoint, listen, resolve, split
from hvdlite.scope import Scope
from hvdlite.settings import Settings

_MOST_STRANGERS: Final = 64


@dataclass(slots=True, eq=False)
class _Peer:
    """Another rank. ``name`` is the routing id of its connection, until it has another one or is lost."""

    rank: int
    digest: str
    liveness_endpoint: str
    delivery: Delivery
    name: bytes | None = None
    fd: int = -1
    attempts: Attempts = field(default_factory=Attempts)
    probe: LivenessProbe | None = None
    lost: str = ""  # why, once it is


class ZmqRootLink(ZmqLink):
    """Listens at once, at ``address``; `accept` waits for the others.

    Until `accept`, callers wait in the kernel's queue, where strangers cost no descriptor.
    """

    def __init__(self, membership: Membership, options: Settings) -> None:
        super().__init__(membership, options)
        address = options.address or LOOPBACK
        self._socket = self._open(zmq.ROUTER, address)
        self._monitored = self._monitor(self._socket, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._peers: dict[int, _Peer] = {}
        self._by_name: dict[bytes, _Peer] = {}
        self._by_fd: dict[int, _Peer] = {}
        self._absent: set[int] = set()
        self._open_fds: set[int] = set()
        self._strange_fds: dict[int, None] = {}  # open ones without a hello so far, the oldest first
        self._has_begun_message = False  # its first part, the name, is sent, and the rest is not
        self._spare_fd = -1
        self._listener: Listener | None = None
        try:
            self._spare_fd = os.dup(self._unread.fd)
            self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            curve.serve(self._socket, membership.key_for("control"))
            self._listener = listen(address, options.ports)
            self._port = int(self._listener.name()[1])
            self.address = endpoint(address, self._port)
        except BaseException:
            self.close()
            raise

    def accept(self, addresses: Mapping[int, str], scope: Scope) -> None:
        """Waits for the hellos of the other ranks, whose ``addresses`` are given by rank.

        Raises HorovodInternalError with the ranks that have not come in time, or were lost meanwhile.
        """
        for rank, address in addresses.items():
            digest, _, liveness_endpoint = address.partition(" ")
            try:
                resolve(*split(liveness_endpoint))
            except (ValueError, OSError) as error:
                raise ProtocolError(
                    f"rank {rank} listens at {liveness_endpoint!r:.100}, which is not an address: {error}"
                ) from None
            self._peers[rank] = _Peer(rank, digest, liveness_endpoint, Delivery(self._session))
        listener, self._listener = self._listener, None
        assert listener is not None
        self._socket.setsockopt(zmq.USE_FD, listener.hand_over())
        self._socket.bind(self.address)
        while missing := [rank for rank, peer in self._peers.items() if peer.name is None]:
            if scope.is_over:
                raise HorovodInternalError(f"rank(s) {shortened(missing)} did not connect to rank 0 in time")
            self._sleep(scope)
            for item in self.receive():
                if isinstance(item, Lost):
                    raise HorovodInternalError(f"rank {item.rank} was lost during init(): {item.cause}")
                sender, _ = item
                raise ProtocolError(f"rank {sender} sent something before all ranks had come")

    @property
    def due(self) -> float | None:
        probes = [self._peers[rank].probe for rank in tuple(self._absent)]  # a turn may change the set meanwhile
        return min((probe.due for probe in probes if probe is not None), default=None)

    def send(self, message: Message) -> None:
        kind, body = body_of(message)
        for peer in self._peers.values():
            if not peer.lost:
                frame = peer.delivery.send(kind, body)
                if peer.probe is None and peer.name is not None:
                    self._transmit(peer.name, frame)

    def receive(self) -> Iterator[Received | Lost]:
        self._look()
        if self._has_events:
            self._read_events()
        while (received := self._next_frame()) is not None:
            name, frame = received
            peer = self._by_name.get(name)
            if peer is None:
                assert isinstance(frame, zmq.Frame)
                if (stuck := self._greet(name, frame)) is not None:
                    yield self._lose(stuck, self._why_stuck(stuck))
                continue
            assert isinstance(frame, bytes)
            try:
                message = peer.delivery.receive(header_of(frame, self._session), frame)
            except ProtocolError as error:
                yield self._lose(peer, f"it broke the protocol: {error}")
                continue
            if (receipt := peer.delivery.receipt()) is not None:
                self._transmit(name, receipt)
            if message is not None:
                yield peer.rank, message
        for rank in list(self._absent):
            peer = self._peers[rank]
            if peer.probe is not None and (cause := peer.probe.look()) is not None:
                yield self._lose(peer, cause)

    def _next_frame(self) -> tuple[bytes, bytes | zmq.Frame] | None:
        """The next frame and its connection. Frames of known connections are copied out, others are not."""
        while True:
            try:
                name = self._socket.recv(zmq.NOBLOCK)
                # Parts come together: one is missing only if a signal's handler raised between these two calls before.
                frame: bytes | zmq.Frame = self._socket.recv(zmq.NOBLOCK, copy=name in self._by_name)
            except zmq.Again:
                return None
            if not self._socket.getsockopt(zmq.RCVMORE):
                return name, frame
            while self._socket.getsockopt(zmq.RCVMORE):
                self._socket.recv(zmq.NOBLOCK)
            self._warn("dropped a message of several parts, which no rank sends")

    # ---- connections

    def _greet(self, name: bytes, frame: zmq.Frame) -> _Peer | None:
        """Accepts a peer's connection. Returns the peer if nothing gets through on its connections."""
        try:
            header = header_of(frame.bytes, self._session)
            if header.kind in (Type.READY, Type.END, Type.RECEIPT):
                return None  # of a connection that its rank has replaced meanwhile; it will be sent again
            hello = read_hello(header, frame.bytes)
        except ProtocolError as error:
            self._warn(f"a connection to rank 0 was ignored: {error}")
            return None
        if reason := self._why_not(hello):
            self._warn(f"rank 0 refused a connection: {reason}")
            self._transmit(name, refusal(reason, self._session))
            return None
        peer = self._peers[hello.rank]
        self._attach(peer, name, int(frame.get(zmq.SRCFD)), header)
        peer.attempts.begin(peer.delivery.sent, header.received, header.number, peer.delivery.received)
        return peer if peer.attempts.fruitless >= MAX_FRUITLESS else None

    def _why_not(self, hello: Hello) -> str:
        """The reason to refuse this hello, or empty."""
        peer = self._peers.get(hello.rank)
        if peer is None or hello.size != self._membership.size:
            return f"rank {hello.rank} of {hello.size} is not of this group of {self._membership.size} ranks"
        if not fits(hello.token, peer.digest):
            return f"it claims to be rank {hello.rank}, and is not"
        return f"rank 0 has given it up: {peer.lost}" if peer.lost else ""

    def _why_stuck(self, peer: _Peer) -> str:
        return (
            f"{MAX_FRUITLESS} connections in a row between rank 0 and rank {peer.rank} ended before a control frame "
            "had passed: something in the network damages it, or cuts the connections"
        )

    def _attach(self, peer: _Peer, name: bytes, fd: int, header: Header) -> None:
        try:
            missing = list(peer.delivery.resume(header.received))
        except ProtocolError as error:
            self._transmit(name, refusal(str(error), self._session))
            self._warn(f"rank 0 refused a connection of rank {peer.rank}: {error}")
            return
        self._detach(peer)
        self._read_events()
        self._strange_fds.pop(fd, None)
        peer.name, peer.fd = name, fd
        self._by_name[name] = peer
        if (former := self._by_fd.pop(fd, None)) is not None:
            self._part(former)
        if fd in self._open_fds:
            self._by_fd[fd] = peer
        else:
            self._part(peer)
        self._transmit(name, welcome(peer.delivery.received, self._session))
        for frame in missing:
            self._transmit(name, frame)

    def _detach(self, peer: _Peer) -> None:
        """Forgets the connection and the probe of ``peer``."""
        if peer.name is not None:
            self._by_name.pop(peer.name, None)
        if self._by_fd.get(peer.fd) is peer:
            del self._by_fd[peer.fd]
        if peer.probe is not None:
            peer.probe.close()
            peer.probe = None
        self._absent.discard(peer.rank)

    def _part(self, peer: _Peer) -> None:
        """Probes ``peer``, whose connection has ended. Its last messages can still be read."""
        peer.probe = LivenessProbe(peer.liveness_endpoint, self._options)
        self._absent.add(peer.rank)

    def _lose(self, peer: _Peer, cause: str) -> Lost:
        self._detach(peer)
        peer.lost = cause
        if peer.name is not None:
            self._transmit(peer.name, refusal(f"rank 0 has given it up: {cause}", self._session))
        return Lost(peer.rank, cause)

    def _read_events(self) -> None:
        self._has_events = False
        for event, value in self._monitored.events():
            if event == zmq.EVENT_ACCEPTED:
                self._open_fds.add(value)
                self._strange_fds[value] = None
                continue
            self._open_fds.discard(value)
            if (peer := self._by_fd.pop(value, None)) is not None:
                self._part(peer)
            elif value in self._strange_fds:
                self._warn(
                    "a caller of rank 0 did not prove that it belongs to this job: a process with another key, "
                    "a port scanner, or a network that breaks connections"
                )
            self._strange_fds.pop(value, None)
        for fd in list(self._strange_fds)[:-_MOST_STRANGERS]:
            self._show_out(fd)

    def _show_out(self, fd: int) -> None:
        """Ends a connection that has not completed ZeroMQ's handshake, which limits their time but not their number.

        ZeroMQ may have closed it just now, so another file with this number is left alone, as are peers. Strangers may
        have used all descriptors, so this needs only the spare one.
        """
        del self._strange_fds[fd]
        with suppress(OSError):
            os.dup2(fd, self._spare_fd, inheritable=False)
            try:
                stranger = socket.socket(fileno=self._spare_fd)
                try:
                    own = stranger.getsockname()
                    if isinstance(own, tuple) and own[1] == self._port:
                        stranger.shutdown(socket.SHUT_RDWR)
                finally:
                    stranger.detach()
            finally:
                os.dup2(self._unread.fd, self._spare_fd, inheritable=False)

    def _transmit(self, name: bytes, frame: bytes) -> None:
        if self._has_begun_message:  # a signal's handler raised in the middle of it
            with suppress(zmq.ZMQError):
                self._socket.send(b"", zmq.NOBLOCK)
        self._has_begun_message = True
        try:
            self._socket.send(name, zmq.NOBLOCK | zmq.SNDMORE)
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):  # ended: the monitor reports it, or has reported it
                raise
        self._has_begun_message = False
        self._recheck(self._socket)

    # ---- for ZmqLink

    def _awaits_receipts(self) -> bool:
        return any(peer.delivery.has_unacknowledged and not peer.lost for peer in self._peers.values())

    def _release(self) -> None:
        for peer in self._peers.values():
            self._detach(peer)
        self._discard(self._monitored)
        if self._listener is not None:
            self._listener.close()
        if self._spare_fd >= 0:
            os.close(self._spare_fd)
