"""Connections through a tunnel, both ends of it in one process and joined by function calls."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from hvdlite.launcher.agent.tunnel import Tunnel, tunnelled
from hvdlite.launcher.stream.loop import Loop
from hvdlite.launcher.stream.messages import Close, Data, Open
from tests.harness.patience import PATIENCE_S

NOBODY = 65534


@dataclass
class Ends:
    loop: Loop
    agent: Tunnel
    hvdrun: Tunnel
    services: dict[str, str]
    name: str  # on which the agent listens
    server: socket.socket  # where the service is

    def turn_until(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_done():
            assert time.monotonic() < deadline
            self.loop.turn(time.monotonic() + 0.01)

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.connect(f"\0{self.name}")
        client.setblocking(False)
        return client

    def accept(self) -> socket.socket:
        accepted: list[socket.socket] = []

        def has_come() -> bool:
            try:
                accepted.append(self.server.accept()[0])
            except BlockingIOError:
                return False
            return True

        self.turn_until(has_come)
        accepted[0].setblocking(False)
        return accepted[0]

    def read(self, end: socket.socket, size: int) -> bytes:
        found = bytearray()

        def is_done() -> bool:
            try:
                piece = end.recv(1 << 16)
            except BlockingIOError:
                return False
            found.extend(piece)
            return not piece or len(found) >= size

        self.turn_until(is_done)
        return bytes(found)


@pytest.fixture
def ends() -> Iterator[Ends]:
    loop, services = Loop(), dict[str, str]()
    server = socket.socket(socket.AF_UNIX)
    services["meeting"] = f"hvdlite-test-{secrets.token_hex(8)}"
    server.bind(f"\0{services['meeting']}")
    server.listen()
    server.setblocking(False)

    def deliver(to: Tunnel, message: Data | Open | Close) -> None:
        match message:
            case Data(channel, data):
                to.deliver(channel, data)
            case Open(channel, service):
                to.open(channel, services.get(service))
            case Close(channel):
                to.close(channel)

    agent = Tunnel(loop, lambda message: deliver(hvdrun, message))
    hvdrun = Tunnel(loop, lambda message: deliver(agent, message))
    name = f"hvdlite-test-{secrets.token_hex(8)}"
    agent.listen(name, "meeting")
    yield Ends(loop, agent, hvdrun, services, name, server)
    agent.shut()
    hvdrun.shut()
    server.close()
    loop.close()


def test_bytes_pass_both_ways_and_the_end_of_one_side_ends_the_other(ends: Ends) -> None:
    sent = os.urandom(3 << 20)
    with ends.connect() as client, ends.accept() as service:
        service.sendall(b"welcome")
        assert ends.read(client, 7) == b"welcome"
        pieces = memoryview(sent)
        found = b""
        while len(found) < len(sent):
            with suppress(BlockingIOError):
                pieces = pieces[client.send(pieces[: 1 << 16]) :] if pieces else pieces
            ends.loop.turn(0)
            with suppress(BlockingIOError):
                found += service.recv(1 << 20)
        assert found == sent
        service.close()
        assert ends.read(client, 1) == b""


def test_each_connection_has_a_channel_of_its_own(ends: Ends) -> None:
    with ends.connect() as first, ends.accept() as first_service, ends.connect() as second, ends.accept() as other:
        first.send(b"1")
        second.send(b"2")
        assert ends.read(other, 1) == b"2"
        assert ends.read(first_service, 1) == b"1"
        first.close()
        assert ends.read(first_service, 1) == b""
        other.send(b"still here")
        assert ends.read(second, 10) == b"still here"


def test_a_service_that_is_not_offered_closes_the_connection(ends: Ends) -> None:
    del ends.services["meeting"]
    with ends.connect() as client:
        assert ends.read(client, 1) == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")
def test_another_user_of_the_host_is_turned_away(ends: Ends) -> None:
    stranger = os.fork()
    if not stranger:
        os.setuid(NOBODY)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"\0{ends.name}")
            os._exit(len(client.recv(1)))
    ends.turn_until(lambda: os.waitid(os.P_PID, stranger, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)
    assert os.waitpid(stranger, 0) == (stranger, 0)
    with pytest.raises(BlockingIOError):
        ends.server.accept()


def test_a_held_tunnel_reads_nothing_until_it_goes_on(ends: Ends) -> None:
    with ends.connect() as client, ends.accept() as service:
        ends.agent.hold(True)
        client.send(b"later")
        for _ in range(5):
            ends.loop.turn(time.monotonic() + 0.01)
        with pytest.raises(BlockingIOError):
            service.recv(1)
        ends.agent.hold(False)
        assert ends.read(service, 5) == b"later"


def test_a_name_that_is_taken_is_an_error(ends: Ends) -> None:
    with pytest.raises(OSError, match="in use"):
        ends.agent.listen(ends.name, "meeting")


def test_only_abstract_sockets_of_hvdlites_variables_are_carried() -> None:
    environment = {
        "HVDLITE_RENDEZVOUS": "unix://@here",
        "HVDLITE_RUN_ADDRESS": "tcp://127.0.0.1:5",
        "OTHER": "unix://@x",
    }
    assert tunnelled(environment, "HVDLITE_") == {"HVDLITE_RENDEZVOUS": "here"}
