"""The door of a ring: what is left of a connection when a neighbour that calls anew is gone before it is answered."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from hvdlite.dataplane.doorman import Doorman
from hvdlite.dataplane.handshake import Callee, Caller
from hvdlite.dataplane.streams import dial, listen, name_of
from hvdlite.dataplane.watch import Watch

SECRET = bytes(range(32))
RECEIVED = 5


class Wires:
    """Remembers what is attached, in place of a native ring. ``meanwhile`` happens when that is detached."""

    def __init__(self) -> None:
        self.left = -1
        self.meanwhile: Callable[[], None] = lambda: None

    def detach_left(self) -> int:
        self.left = -1
        self.meanwhile()
        return RECEIVED

    def attach_left(self, fd: int, keys: bytes) -> bool:
        self.left = fd
        return True


class House:
    """A door and what is behind it."""

    def __init__(self) -> None:
        self.wires, self._watch, listener = Wires(), Watch(), listen(None, None)
        self.name = name_of(listener)
        self.door = Doorman(self._watch, self.wires, listener, lambda: Callee(SECRET, 1, 1, 0))  # type: ignore[arg-type]
        self.close = self.door.close

    def turn(self) -> None:
        self.door.tick(time.monotonic())
        self._watch.sleep(time.monotonic() + 0.01)

    def call(self) -> tuple[socket.socket, Caller]:
        """A call of the neighbour, who has said everything that proves who it is, and has not been answered yet."""
        link, caller = dial(self.name), Caller(SECRET, 1, 0, 1)
        link.setblocking(True)
        link.settimeout(5.0)
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
    assert house.door.admitted == 1
    second, _ = house.call()
    house.wires.meanwhile = second.close
    house.turn()
    assert (house.door.admitted, house.door.refused) == (1, 1)
    assert house.wires.left == -1
    assert house.door.is_cut_off
    with first:
        while first.recv(4096):  # its welcome, then the end
            continue
    third, caller = house.call()
    house.turn()
    with third:
        caller.take(third.recv(caller.awaits, socket.MSG_WAITALL))
        assert (caller.received, house.door.admitted) == (RECEIVED, 2)
        assert house.wires.left >= 0
        assert not house.door.is_cut_off
