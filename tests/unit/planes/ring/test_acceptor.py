"""A ring's acceptor: what is left of a connection when a neighbour that calls anew is gone before it is answered."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from hvdlite.net.handshake import Callee, Caller
from hvdlite.net.poll import Poller
from hvdlite.net.sockets import dial, listen, name_of
from hvdlite.planes.ring.acceptor import Acceptor
from tests.harness.patience import PATIENCE_S

SECRET = bytes(range(32))
RECEIVED = 5


class RingConnections:
    """Remembers what is attached, in place of a native ring. ``meanwhile`` happens when that is detached."""

    def __init__(self, connections: int) -> None:
        self.count = connections
        self.left = [-1] * connections
        self.meanwhile: Callable[[], None] = lambda: None

    def detach_left(self, connection: int) -> int:
        self.left[connection] = -1
        self.meanwhile()
        return RECEIVED + connection

    def attach_left(self, connection: int, fd: int, keys: bytes) -> bool:
        self.left[connection] = fd
        return True


class House:
    """An acceptor and what it hands connections to."""

    def __init__(self, connections: int = 1) -> None:
        self.connections, self._poller, listener = RingConnections(connections), Poller(), listen(None, None)
        self.name = name_of(listener)
        self.acceptor = Acceptor(self._poller, self.connections, listener, lambda: Callee(SECRET, 1, 1, 0, connections))  # type: ignore[arg-type]
        self.close = self.acceptor.close

    def turn(self) -> None:
        self.acceptor.lobby.tick(time.monotonic())
        self._poller.sleep(time.monotonic() + 0.01)

    def call(self, connection: int = 0, connections: int = 1) -> tuple[socket.socket, Caller]:
        """A call of the neighbour, who has said everything that proves who it is, and has not been answered yet."""
        link, caller = dial(self.name), Caller(SECRET, 1, 0, 1, connection, connections)
        link.setblocking(True)
        link.settimeout(PATIENCE_S)
        link.sendall(caller.hello)
        for _ in range(3):
            self.turn()
        link.sendall(caller.take(link.recv(caller.awaits, socket.MSG_WAITALL)))
        return link, caller


@pytest.fixture
def house() -> Iterator[House]:
    with closing(House()) as house:
        yield house


def test_a_neighbour_that_leaves_before_its_welcome_can_come_again(house: House) -> None:
    first, _ = house.call()
    house.turn()
    assert house.acceptor.admitted == [1]
    second, _ = house.call()
    house.connections.meanwhile = second.close
    house.turn()
    assert (house.acceptor.admitted, house.acceptor.lobby.refused) == ([1], 1)
    assert house.connections.left == [-1]
    assert house.acceptor.is_cut_off
    with first:
        while first.recv(4096):  # its welcome, then the end
            continue
    third, caller = house.call()
    house.turn()
    with third:
        caller.take(third.recv(caller.awaits, socket.MSG_WAITALL))
        assert (caller.received, house.acceptor.admitted) == (RECEIVED, [2])
        assert house.connections.left[0] >= 0
        assert not house.acceptor.is_cut_off


def test_each_connection_has_its_own_place_and_only_one_of_its_number_takes_it() -> None:
    with closing(House(connections=3)) as house, ExitStack() as stack:
        for connection in (2, 0):
            link, caller = house.call(connection, 3)
            stack.enter_context(link)
            house.turn()
            caller.take(link.recv(caller.awaits, socket.MSG_WAITALL))
            assert caller.received == RECEIVED + connection
        first, untouched = house.connections.left[0], house.connections.left[2]
        assert (house.acceptor.admitted, house.connections.left[1]) == ([1, 0, 1], -1)
        stack.enter_context(house.call(0, 3)[0])
        house.turn()
        assert house.acceptor.admitted == [2, 0, 1]
        assert house.connections.left[0] not in (-1, first)
        assert house.connections.left[2] == untouched


def test_the_neighbour_is_cut_off_until_it_has_made_each_lost_connection_again() -> None:
    with closing(House(connections=3)) as house, ExitStack() as stack:
        for connection in (0, 2):
            with house.call(connection, 3)[0]:
                house.turn()
        house.turn()
        assert house.acceptor.is_cut_off
        for connection, is_cut_off in ((0, True), (2, False)):
            stack.enter_context(house.call(connection, 3)[0])
            house.turn()
            assert house.acceptor.is_cut_off == is_cut_off


@pytest.mark.parametrize(("connection", "connections"), [(0, 1), (0, 4), (3, 3), (0, 0)])
def test_a_neighbour_that_makes_another_number_of_connections_is_told_of(connection: int, connections: int) -> None:
    with closing(House(connections=3)) as house:
        link, _ = house.call(connection, connections)
        house.turn()
        with link:
            assert link.recv(4096) == b""
        assert (house.acceptor.admitted, house.acceptor.lobby.refused) == ([0, 0, 0], 1)
        assert house.acceptor.lobby.trouble == f"it makes {connections} connections instead of 3"
