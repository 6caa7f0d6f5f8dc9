"""Keeps a rank of a ring connected to its neighbours, whatever else the rank is doing.

A thread sleeps until a connection arrives or ends; frames never wake it. It lets the left neighbour in (`acceptor`),
dials the right one (`connector`, one for each connection), and hands the connections to the native ring, which resumes
with the first frame that the receiver does not have. So a rank that computes, or has finished its part of a collective,
still resends what a broken connection has lost.

Only the calling side re-establishes a connection, as soon as its own end shows that the connection has ended: a rank
that receives a damaged frame shuts the connection down, which both ends notice.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from hvdlite.errors import HorovodInternalError, HvdError
from hvdlite.log import logger
from hvdlite.net.handshake import Callee, Caller
from hvdlite.net.listener import Listener
from hvdlite.net.poll import Poller
from hvdlite.planes.ring.acceptor import Acceptor
from hvdlite.planes.ring.connections import RingConnections
from hvdlite.planes.ring.connector import Connector
from hvdlite.scope import Scope

_NEVER: Final = float("inf")


class Neighbours(NamedTuple):
    """A rank and its neighbours, by their numbers in messages, and the key with which they prove who they are."""

    secret: bytes
    session: int
    left: int
    rank: int
    right: int
    connections: int

    def new_callee(self) -> Callee:
        return Callee(self.secret, self.session, self.rank, self.left, self.connections)

    def new_caller(self, connection: int) -> Caller:
        return Caller(self.secret, self.session, self.rank, self.right, connection, self.connections)


class Reconnector:
    """Takes over ``listener``, and dials ``right_name`` as soon as it is started.

    ``on_failure`` is called in the reconnector's thread if the right neighbour, once connected, does not let this rank
    in again for ``patience_s``, or its host is unreachable for ``unreachable_s``. Any thread may call `stop` and
    `close`.
    """

    def __init__(
        self,
        neighbours: Neighbours,
        connections: RingConnections,
        listener: Listener,
        right_name: str,
        patience_s: float,
        unreachable_s: float,
        on_failure: Callable[[HvdError], None],
    ) -> None:
        self._neighbours = neighbours
        self._connections = connections
        self._right_name = right_name
        self._patience_s = patience_s
        self._unreachable_s = unreachable_s
        self._on_failure = on_failure
        self._poller = Poller()
        self._acceptor = Acceptor(self._poller, connections, listener, neighbours.new_callee)
        self._connectors = [
            Connector(self._poller, connections, connection, right_name, neighbours.new_caller)
            for connection in range(neighbours.connections)
        ]
        self._changed = threading.Condition()  # notified after every turn of the thread
        self._close_by = _NEVER  # set once
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller.set(self._wake, select.POLLIN, self._wake_up)
        self._warned_of = 0  # resumed connections that the last warning counted
        self._thread = threading.Thread(target=self._run, name="hvdlite-ring-reconnector", daemon=True)
        self._thread.start()

    @property
    def resumed(self) -> int:
        """The number of connections that replaced one that ended, on either side."""
        made = (*(connector.connected for connector in self._connectors), *self._acceptor.admitted)
        return sum(max(0, times - 1) for times in made)

    @property
    def corrupt(self) -> int:
        """The number of damaged frames from the left neighbour."""
        return self._connections.corrupt

    def wait_until_connected(self, scope: Scope) -> None:
        """Returns once all connections are made. Raises HorovodInternalError naming who has not come in time."""
        with self._changed:
            while not self._changed.wait_for(self._is_complete_or_closing, scope.pause_s()):
                if scope.is_over:
                    break
        left, right, acceptor = self._neighbours.left, self._neighbours.right, self._acceptor
        if acceptor.lobby.trouble:
            raise HorovodInternalError(
                f"its left neighbour, rank {left}, disagrees with it: {acceptor.lobby.trouble}; "
                "HVDLITE_RING_CONNECTIONS must be the same on all ranks"
            )
        if missing := next((connector for connector in self._connectors if not connector.connected), None):
            raise HorovodInternalError(
                f"its right neighbour, rank {right} at {self._right_name}, cannot be reached: {missing.trouble}; "
                "see that rank's own output for the reason"
            )
        if not all(acceptor.admitted):
            strangers = f"; {acceptor.lobby.refused} connections that are not of this job were refused"
            raise HorovodInternalError(
                f"its left neighbour, rank {left}, did not connect in time{strangers if acceptor.lobby.refused else ''}"
            )

    def stop(self, linger_s: float = 0.0) -> None:
        """Ends the thread: now, or within ``linger_s`` as soon as the right neighbour's host has everything."""
        with self._changed:
            self._close_by = min(self._close_by, time.monotonic() + linger_s)
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def close(self, linger_s: float) -> None:
        """Stops the thread and waits until it has ended and closed all connections."""
        self.stop(linger_s)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _is_complete_or_closing(self) -> bool:
        is_complete = all(connector.connected for connector in self._connectors) and all(self._acceptor.admitted)
        return is_complete or bool(self._acceptor.lobby.trouble) or self._close_by < _NEVER

    @property
    def _has_delivered(self) -> bool:
        """True if both neighbours have what they need from this rank, which is closing."""
        return all(connector.is_finished for connector in self._connectors) and not self._acceptor.is_cut_off

    def _run(self) -> None:
        try:
            self._keep()
        finally:
            if self._close_by == _NEVER:  # an unexpected error, which the end of the thread prints
                rank = self._neighbours.rank
                self._on_failure(HorovodInternalError(f"the ring's reconnector on rank {rank} failed; see its output"))
            for connector in self._connectors:
                connector.close()
            self._acceptor.close()
            with self._changed:
                wake, self._wake = self._wake, -1
            os.close(wake)

    def _wake_up(self, _: int) -> None:
        os.eventfd_read(self._wake)

    def _keep(self) -> None:
        is_finishing = False
        while not self._has_delivered and time.monotonic() < self._close_by:
            if self._close_by < _NEVER and not is_finishing:
                is_finishing = True
                for connector in self._connectors:
                    connector.finish()
            now = time.monotonic()
            self._acceptor.lobby.tick(now)
            for connector in self._connectors:
                connector.tick(now)
            dues = (connector.due for connector in self._connectors)
            self._poller.sleep(min(self._acceptor.lobby.due, self._close_by, *dues))
            self._warn_of_resumed()
            with self._changed:
                self._changed.notify_all()
            for connector in self._connectors:
                self._check_patience(connector)

    def _check_patience(self, connector: Connector) -> None:
        if not connector.connected or connector.is_connected:
            return
        right = self._neighbours.right
        now = time.monotonic()
        if now > min(connector.lost_at + self._patience_s, connector.reached_at + self._unreachable_s):
            self._on_failure(
                HorovodInternalError(
                    f"rank {self._neighbours.rank} lost its connection to rank {right} at {self._right_name} and could "
                    f"not re-establish it for {now - connector.lost_at:.1f} s: {connector.trouble}. Check that the "
                    "network between their hosts is up and that firewalls admit all ports of HVDLITE_PORT_RANGE"
                )
            )

    def _warn_of_resumed(self) -> None:
        """Warns of re-established connections: the first, and then whenever their number has doubled."""
        resumed = self.resumed
        if resumed < max(1, 2 * self._warned_of):
            return
        self._warned_of = resumed
        logger.warning(
            "rank %d: connections to its neighbours, ranks %d and %d, ended and were re-established without losing "
            "data; %d so far, and %d damaged frames",
            *(self._neighbours.rank, self._neighbours.left, self._neighbours.right, resumed, self.corrupt),
        )
