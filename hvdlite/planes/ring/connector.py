"""Connects a rank of a ring to its right neighbour, and again whenever that connection has ended."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Final

from hvdlite.net.handshake import Caller, Refused
from hvdlite.net.handshake_io import HandshakeIO
from hvdlite.net.poll import ENDED, Poller
from hvdlite.net.sockets import dial, leave_bbr
from hvdlite.planes.ring.connections import RingConnections

_HANDSHAKE_TIMEOUT_S: Final = 2.0
_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.1
_UNREACHABLE: Final = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ETIMEDOUT)


class Connector:
    """Makes one connection: dials ``name`` until the rank there proves to be the right neighbour. Of one thread only.

    ``connection`` is its number. ``connected`` counts how often it was made, ``trouble`` is what was wrong with the
    last attempt, ``lost_at`` when it was lost, ``reached_at`` when its host was last known to be reachable. After
    `finish`, ``is_finished`` is true once the neighbour's host has everything that was sent.
    """

    def __init__(
        self,
        poller: Poller,
        connections: RingConnections,
        connection: int,
        name: str,
        new_caller: Callable[[int], Caller],
    ) -> None:
        self._poller = poller
        self._connections = connections
        self._connection = connection
        self._name = name
        self._new_caller = new_caller
        self._call: HandshakeIO[Caller] | None = None
        self._right: socket.socket | None = None
        self._dial_at = 0.0
        self._pause_s = 0.0
        self._is_finishing = False
        self.connected = 0
        self.trouble = "no answer in time"
        self.lost_at = self.reached_at = time.monotonic()
        self.is_finished = False

    @property
    def is_connected(self) -> bool:
        return self._right is not None

    @property
    def due(self) -> float:
        """The time of the next `tick`."""
        if self._call is not None:
            return self._call.deadline
        return float("inf") if self.is_connected else self._dial_at

    def tick(self, now: float) -> None:
        if self._call is not None and self._call.deadline <= now:
            self._give_up_call("no answer in time")
        if self._call is None and not self.is_connected and self._dial_at <= now:
            self._dial(now)

    def finish(self) -> None:
        """Delivers what was sent, over a new connection if necessary. Nothing more will be sent."""
        self._is_finishing = True
        if self._right is not None:
            self._deliver(0)

    def close(self) -> None:
        """Ends all connections."""
        if self._call is not None:
            self._poller.close(self._call.sock)
        if self._right is not None:
            self._connections.detach_right(self._connection)
            self._poller.close(self._right)

    def _dial(self, now: float) -> None:
        try:
            sock = dial(self._name)
        except OSError as error:
            self._pause(error)
            return
        self._call = HandshakeIO(sock, self._new_caller(self._connection), now + _HANDSHAKE_TIMEOUT_S)
        self._poller.set(sock, select.POLLOUT, self._greet)

    def _greet(self, _: int) -> None:
        assert self._call is not None
        try:
            if number := self._call.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(number, os.strerror(number))
            self.reached_at = time.monotonic()
            self._call.send(self._call.party.hello)
        except OSError as error:
            self._give_up_call(error)
        else:
            self._poller.set(self._call.sock, select.POLLIN, self._go_on)

    def _go_on(self, _: int) -> None:
        assert self._call is not None
        try:
            if not self._call.go_on():
                return
        except (Refused, OSError) as error:
            self._give_up_call(error)
            return
        call, self._call = self._call, None
        leave_bbr(call.sock)
        received = call.party.received
        if not self._connections.attach_right(self._connection, call.sock.fileno(), received, call.party.keys):
            self._poller.close(call.sock)
            self._pause(Refused(f"it claims to have received {received} frames, which is impossible"))
            return
        self._right = call.sock
        self._pause_s = 0.0
        self.connected += 1
        self._deliver(0)

    def _deliver(self, events: int) -> None:
        """Handles the end of the connection, and writes what a collective could not write at once."""
        assert self._right is not None
        if events & ENDED:
            self._lose()
        elif self._connections.flush(self._connection):
            self._poller.set(self._right, select.POLLRDHUP | select.POLLOUT, self._deliver)
        elif not self._is_finishing:
            self._poller.set(self._right, select.POLLRDHUP, self._deliver)
        else:
            self._connections.detach_right(self._connection)
            self._poller.set(self._right, select.POLLIN, self._await_farewell)
            self._say_no_more()

    def _say_no_more(self) -> None:
        assert self._right is not None
        try:
            self._right.shutdown(socket.SHUT_WR)
        except OSError:
            self._lose()

    def _await_farewell(self, _: int) -> None:
        """Waits until the neighbour ends its side, once all has been delivered; acknowledgements are skipped."""
        assert self._right is not None
        try:
            while self._right.recv(4096):
                continue
            self.is_finished = True
            self._poller.let_go(self._right)
        except BlockingIOError:
            return
        except OSError:
            self._lose()

    def _lose(self) -> None:
        assert self._right is not None
        self._connections.detach_right(self._connection)
        self._poller.close(self._right)
        self._right = None
        self.lost_at = self.reached_at = self._dial_at = time.monotonic()

    def _give_up_call(self, reason: Exception | str) -> None:
        assert self._call is not None
        self._poller.close(self._call.sock)
        self._call = None
        self._pause(reason)

    def _pause(self, reason: Exception | str) -> None:
        if isinstance(reason, OSError) and reason.errno not in _UNREACHABLE:
            self.reached_at = time.monotonic()
        self.trouble = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
        # The neighbour does not listen any more: it has left, and needs nothing from this rank.
        self.is_finished = self._is_finishing and isinstance(reason, ConnectionRefusedError)
        self._pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * self._pause_s))
        self._dial_at = time.monotonic() + self._pause_s
