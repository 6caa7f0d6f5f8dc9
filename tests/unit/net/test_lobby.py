"""A crowd of strangers where callers prove that they are of the job: it costs little, and keeps nobody out."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hvdlite.net.handshake import Callee, Caller
from hvdlite.net.handshake_io import HandshakeIO
from hvdlite.net.listener import Listener
from hvdlite.net.listening import listen
from hvdlite.net.lobby import Lobby
from hvdlite.net.poll import Poller
from tests.harness.patience import PATIENCE_S

SECRET = bytes(range(32))
MOST = 64


class House:
    """A lobby, and those who came through it."""

    def __init__(self, listener: Listener) -> None:
        self.where = listener.name()
        self.poller = Poller()
        self.admitted: list[HandshakeIO[Callee]] = []
        self.lobby = Lobby(self.poller, listener, lambda: Callee(SECRET, 1, 1, 0), self.admitted.append)

    def turn(self, turns: int = 1) -> None:
        for _ in range(turns):
            self.lobby.tick(time.monotonic())
            self.poller.sleep(time.monotonic() + 0.01)

    def dial(self, stack: ExitStack, said: bytes) -> socket.socket:
        family = socket.AF_UNIX if isinstance(self.where, str) else socket.AF_INET
        link = stack.enter_context(socket.socket(family))
        link.settimeout(PATIENCE_S)
        link.connect("\0" + self.where if isinstance(self.where, str) else self.where)
        link.sendall(said)
        return link


@pytest.fixture(params=["tcp", "unix"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    listener = listen("127.0.0.1", None) if request.param == "tcp" else Listener.within_host(f"test-{os.getpid()}")
    house = House(listener)
    yield house
    house.lobby.close()
    for handshake in house.admitted:
        house.poller.close(handshake.sock)


@pytest.mark.parametrize("said", [b"G", Caller(bytes(32), 1, 0, 1).hello[:-1]], ids=["one byte", "nearly a hello"])
def test_a_caller_of_the_job_outlasts_any_number_of_strangers(house: House, said: bytes) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as stack:
        caller = Caller(SECRET, 1, 0, 1)
        for _ in range(100):
            house.dial(stack, said)
            house.turn()
        link = house.dial(stack, caller.hello)
        house.turn(2)
        for _ in range(150):
            house.dial(stack, said)
            house.turn()
        if isinstance(house.where, tuple):
            kept = len(os.listdir("/proc/self/fd")) - before - 251
            assert kept <= MOST + 1, f"{kept} descriptors for strangers"
        link.sendall(caller.take(link.recv(caller.awaits, socket.MSG_WAITALL)))
        house.turn(3)
        assert [handshake.party.connection for handshake in house.admitted] == [0]


def test_a_first_message_that_was_read_on_the_way_counts_once() -> None:
    house = House(listen("127.0.0.1", None))
    with ExitStack() as stack:
        stack.callback(house.lobby.close)
        caller = Caller(SECRET, 1, 0, 1)
        link = house.dial(stack, caller.hello)
        house.turn(2)
        again = [house.dial(stack, caller.hello) for _ in range(20) if house.turn() is None]
        house.turn(3)
        assert [each.recv(1) for each in again] == [b""] * 20
        link.sendall(caller.take(link.recv(caller.awaits, socket.MSG_WAITALL)))
        house.turn(3)
        assert (len(house.admitted), house.lobby.refused) == (1, 20)
        last = house.dial(stack, caller.hello)  # not even once the caller is in
        house.turn(3)
        assert last.recv(1) == b""
        house.poller.close(house.admitted[0].sock)


def test_those_with_a_first_message_and_nothing_else_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdlite.net.lobby._MOST_UNPROVED", 8)
    house = House(listen("127.0.0.1", None))
    with ExitStack() as stack:
        stack.callback(house.lobby.close)
        callers = [Caller(SECRET, 1, 0, 1) for _ in range(20)]
        links = [house.dial(stack, caller.hello) for caller in callers if house.turn() is None]
        house.turn(3)
        assert house.lobby.refused == 12
        links[-1].sendall(callers[-1].take(links[-1].recv(callers[-1].awaits, socket.MSG_WAITALL)))
        house.turn(3)
        assert len(house.admitted) == 1
        house.poller.close(house.admitted[0].sock)


def test_strangers_who_leave_by_themselves_are_forgotten(house: House) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            house.dial(stack, b"G")
            house.turn()
    house.turn(110)
    assert (house.lobby.refused, house.lobby.due) == (100, float("inf"))


def test_who_says_nothing_valid_leaves_in_time_and_then_nobody_waits(house: House) -> None:
    with ExitStack() as stack:
        links = [house.dial(stack, b"x") for _ in range(10)]
        house.turn(12)
        assert house.lobby.due < time.monotonic() + 3.0
        while house.lobby.due < float("inf"):
            house.turn()
        assert [link.recv(1) for link in links] == [b""] * 10
        assert house.lobby.refused == 10


def test_what_is_wrong_is_shown_out_at_once(house: House) -> None:
    with ExitStack() as stack:
        link = house.dial(stack, Caller(bytes(32), 1, 0, 1).hello)
        house.turn(2)
        assert link.recv(1) == b""
        assert (house.lobby.refused, house.lobby.due) == (1, float("inf"))
        assert house.lobby.refused_at == (["127.0.0.1"] if isinstance(house.where, tuple) else [])


def test_of_many_addresses_a_few_are_remembered_once_each() -> None:
    house = House(listen("127.0.0.1", None))
    callers = [f"127.0.0.{number}" for number in range(1, 12)]
    with ExitStack() as stack:
        stack.callback(house.lobby.close)
        for address in [callers[0], *callers]:
            assert isinstance(house.where, tuple)
            link = stack.enter_context(socket.create_connection(house.where, PATIENCE_S, source_address=(address, 0)))
            link.sendall(Caller(bytes(32), 1, 0, 1).hello)
            house.turn(2)
        assert (house.lobby.refused, house.lobby.refused_at) == (12, callers[:8])
