"""Control links across hosts: ZeroMQ over TCP with CURVE, which admits only the job's ranks.

A connection may end at any time. The link makes a new one, and `hvdlite.control.delivery` ensures that no message is
lost or delivered twice. Every attempt is a new socket at the dialling end, so that no data of an earlier one precedes
its hello; it has no routing id, so the root gives it a fresh one. libzmq's own thread sends heartbeats, so they stop
only if a peer is stopped or cut off, not if its Python is busy or hung. A peer is lost when its process has ended, or
when it does not come back in time (`hvdlite.control.liveness_probe`).

This file has what both ends share; `ZmqRootLink` and `ZmqLeafLink` are the ends.
"""

from __future__ import annotations

import struct
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import zmq

from hvdlite.control.inbox import Inbox
from hvdlite.control.link import ControlLink, Lost, Received
from hvdlite.control.liveness_probe import LivenessProbe
from hvdlite.log import logger
from hvdlite.members.membership import Membership
from hvdlite.negotiation.wire import MAX_FRAME_BYTES
from hvdlite.net.wake import Wake
from hvdlite.scope import Scope
from hvdlite.settings import Settings

_EVENT = struct.Struct("=hi")  # as libzmq documents it; zmq.utils.monitor would import asyncio to do the same
_CLOSE_S = 2.0
_LINGER_MS = 100  # for receipts; all other messages are acknowledged by then
_HANDSHAKE_MS = 2000
_REDIAL_MS = 50
_CONNECT_MS = 500
_WARN_EVERY_S = 60.0


class MonitoredSocket(NamedTuple):
    """A socket and its monitor."""

    socket: zmq.Socket[bytes]
    fd: int
    monitor: zmq.Socket[bytes]
    monitor_fd: int

    def events(self) -> Iterator[tuple[int, int]]:
        """Yields the events of its connections, each with a value, in most cases a descriptor."""
        while True:
            try:
                event, _ = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield _EVENT.unpack(event)


class ZmqLink(ControlLink):
    """One end: sockets with their monitors, and the warnings.

    The descriptor of a ZeroMQ socket becomes readable only when something arrives after the socket was found empty, and
    any use of the socket clears it. So `receive` reads everything, and `_recheck` follows connecting and sending: then
    an unreadable inbox is empty, and no thread needs to check the socket before it sleeps.
    """

    def __init__(self, membership: Membership, options: Settings) -> None:
        self.inbox = Inbox()
        self._context: zmq.Context[Any] = zmq.Context()
        self._membership = membership
        self._session = membership.session
        self._options = options
        self._next_warning = 0.0
        self._answers: dict[int, Callable[[], object]] = {}  # what `_look` does, by descriptor
        self._has_events = True  # perhaps, on a monitor; a check each time would slow down every round trip
        self._unread = Wake()
        self._answer(self._unread.fd, self._unread.clear)

    @abstractmethod
    def receive(self) -> Iterator[Received | Lost]:
        """As `ControlLink.receive`, but never Left: no other rank reaches the root through this end alone."""

    def flush(self, scope: Scope) -> None:
        while self._awaits_receipts() and not scope.is_over:
            self._sleep(scope)
            for _ in self.receive():
                pass

    def close(self) -> None:
        self.flush(Scope.of(_CLOSE_S))
        self._release()
        self._unread.close()
        self.inbox.close()
        self._context.term()

    @abstractmethod
    def _awaits_receipts(self) -> bool:
        """True while some peer that is not lost has not acknowledged everything."""

    @abstractmethod
    def _release(self) -> None:
        """Closes everything that this end has opened."""

    def _open(self, kind: int, address: str) -> zmq.Socket[bytes]:
        """A socket for links over the IP address, neither bound nor connected yet."""
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.linger = _LINGER_MS
        socket.set_hwm(0)
        socket.ipv6 = ":" in address
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, _REDIAL_MS)  # before the first connection; later ones are new sockets
        socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(self._options.heartbeat_interval * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, LivenessProbe.silence_ms(self._options))
        return socket

    def _sleep(self, scope: Scope) -> None:
        """Sleeps while the link connects or closes, before and after the engine's threads use it."""
        until_due = scope if self.due is None else Scope(self.due, scope)
        self.inbox.sleep(int(until_due.pause_s() * 1000) + 1)

    def _look(self) -> None:
        """Calls the handlers of all ready descriptors except the message sockets."""
        for fd, _ in self.inbox.ready():
            if (answer := self._answers.get(fd)) is not None:
                answer()

    def _recheck(self, socket: zmq.Socket[bytes]) -> None:
        """Makes the inbox readable if ``socket`` has something to read that its descriptor may not show."""
        if int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._unread.set()

    def _answer(self, fd: int, answer: Callable[[], object]) -> None:
        """Has `_look` call ``answer`` when ``fd`` is readable."""
        self._answers[fd] = answer
        self.inbox.add(fd)

    def _ignore(self, fd: int) -> None:
        """Undoes `_answer`."""
        if self._answers.pop(fd, None) is not None:
            self.inbox.remove(fd)

    def _monitor(self, socket: zmq.Socket[bytes], events: int) -> MonitoredSocket:
        """Adds ``socket`` to the inbox, and a monitor for ``events`` of its connections.

        Failed handshakes are not monitored: when libzmq 4.3 reports one, it overwrites the errno of the failure, takes
        a tampered frame for a full queue, and aborts the process at the next heartbeat.
        """
        monitor = socket.get_monitor_socket(events)
        monitored = MonitoredSocket(socket, int(socket.getsockopt(zmq.FD)), monitor, int(monitor.getsockopt(zmq.FD)))
        self.inbox.add(monitored.fd)
        self._answer(monitored.monitor_fd, self._expect_events)
        self._has_events = True
        self._recheck(monitor)
        return monitored

    def _expect_events(self) -> None:
        self._has_events = True

    def _discard(self, monitored: MonitoredSocket, linger_ms: int | None = None) -> None:
        self.inbox.remove(monitored.fd)
        self._ignore(monitored.monitor_fd)
        monitored.socket.disable_monitor()
        monitored.monitor.close(0)
        monitored.socket.close(linger_ms)

    def _warn(self, text: str) -> None:
        """Logs what strangers and impostors did, at most once a minute."""
        if (now := time.monotonic()) >= self._next_warning:
            self._next_warning = now + _WARN_EVERY_S
            logger.warning(text)
