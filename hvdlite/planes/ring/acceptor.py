"""Lets the left neighbour of a ring in, the first time and after each end of one of its connections."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress

from hvdlite.net.handshake import Callee
from hvdlite.net.handshake_io import HandshakeIO
from hvdlite.net.listener import Listener
from hvdlite.net.lobby import Lobby
from hvdlite.net.poll import Poller
from hvdlite.net.sockets import prepare
from hvdlite.planes.ring.connections import RingConnections


class Acceptor:
    """Accepts callers at ``listener``; one that proves to be the left neighbour becomes a left connection.

    Callers wait in ``lobby``; its ``trouble`` is the problem with the neighbour if that was refused. ``admitted`` has
    how often each connection was made. For one thread.
    """

    def __init__(
        self, poller: Poller, connections: RingConnections, listener: Listener, new_callee: Callable[[], Callee]
    ) -> None:
        self._poller = poller
        self._connections = connections
        self.lobby = Lobby(poller, listener, new_callee, self._admit)
        self._left: dict[int, socket.socket] = {}
        self._cut_off: set[int] = set()
        self.admitted = [0] * connections.count

    @property
    def is_cut_off(self) -> bool:
        """True if a connection broke or was dropped: the neighbour may lack acknowledgements, and will call again."""
        return bool(self._cut_off)

    def close(self) -> None:
        """Ends all connections. The native ring has to be done with the left ones."""
        for connection, sock in self._left.items():
            self._connections.detach_left(connection)
            self._poller.close(sock)
        self.lobby.close()

    def _admit(self, handshake: HandshakeIO[Callee]) -> None:
        # Nothing more may be received over the old connection once the count has been sent. The neighbour dropped it
        # before it called, so if this call fails now, there is no connection until the next one.
        prepare(handshake.sock)
        connection = handshake.party.connection
        received = self._connections.detach_left(connection)
        if connection in self._left:
            self._poller.close(self._left.pop(connection))
            self._cut_off.add(connection)
        handshake.send(handshake.party.welcome(received))
        if not self._connections.attach_left(connection, handshake.sock.fileno(), handshake.party.keys):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        self._left[connection] = handshake.sock
        self._poller.set(handshake.sock, select.POLLRDHUP, lambda events: self._neighbour_is_done(connection, events))
        self._cut_off.discard(connection)
        self.admitted[connection] += 1

    def _neighbour_is_done(self, connection: int, events: int) -> None:
        """Confirms the end of a connection over which the neighbour sends nothing more.

        Everything has been delivered to this host, though it may not have been received yet.
        """
        sock = self._left[connection]
        self._poller.let_go(sock)
        if events & (select.POLLERR | select.POLLHUP):
            self._cut_off.add(connection)
        with suppress(OSError):  # it may have ended in both directions
            sock.shutdown(socket.SHUT_WR)
