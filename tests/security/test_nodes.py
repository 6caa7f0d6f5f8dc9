"""Strangers at the port of node 0, and in its place: dropped in time, told nothing, and no job ends because of them."""

from __future__ import annotations

import json
import secrets
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from hvdlite.launcher.nodes.connection import NodeConnection
from hvdlite.launcher.nodes.records import Channel, Introduction, Record, key_of
from hvdlite.launcher.stream.hello import Hello
from hvdlite.launcher.stream.messages import Files, encode
from hvdlite.net.calls import shake_hands
from hvdlite.net.handshake import Caller
from hvdlite.scope import Scope
from tests.harness.patience import PATIENCE_S, until
from tests.hosts.nodes import KEY, Node, ending, free_port, in_place_of_node_0, node, port_of
from tests.launcher.hvdrun import read_until
from tests.security.openings import openings
from tests.security.victim import is_dropped

READY = ("sh", "-c", "echo ready; exec sleep 600")
LATE = {"HVDLITE_START_TIMEOUT": str(4 * PATIENCE_S)}
IDLE = 300


def waits(first: Node, port: int) -> None:
    """Waits until node 0 listens."""

    def listens() -> bool:
        assert first.poll() is None
        with suppress(ConnectionRefusedError):
            dial(port).close()
            return True
        return False

    until(listens)


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def call(port: int, key: str = KEY) -> Channel:
    """A caller that has proved to have the key."""
    address = f"tcp://127.0.0.1:{port}"
    return Channel(*shake_hands(address, key_of(key), Scope.of(PATIENCE_S)), is_caller=True)


def introduction(**fields: object) -> dict[str, object]:
    return {"node": 1, "nodes": 2, "slots": 1, "hello": Hello.describe()._asdict(), **fields}


def answer(channel: Channel) -> tuple[Record, dict[str, str]] | None:
    """The first record that comes; None if the connection ends without any."""
    channel.sock.setblocking(True)
    channel.sock.settimeout(PATIENCE_S)
    try:
        for kind, payload in channel.receive():
            return kind, json.loads(payload)
    except ConnectionError:
        pass
    return None


def test_no_stranger_ends_or_delays_a_job_of_nodes(tmp_path: Path) -> None:
    port, canary = free_port(), tmp_path / "canary"
    with ending(first := node(0, 2, port, *READY, environ=LATE)):
        waits(first, port)
        before = psutil.Process(first.pid).num_fds()
        attack(port, canary)
        with ending(second := node(1, 2, port, *READY, environ=LATE)):
            assert first.stdout is not None
            read_until(first.stdout.fileno(), lambda found: found.count(b"ready\n") == 2)
            attack(port, canary)
            until(lambda: psutil.Process(first.pid).num_fds() < before + 40)  # two agents, and no stranger
            first.terminate()
            assert (first.rest().code, second.rest().code) == (143, 143)
    assert not canary.exists()


def attack(port: int, canary: Path) -> None:
    """Sends all openings, and opens many connections that send nothing. All have to be dropped."""
    with ExitStack() as stack:
        attacks = []
        for payload in openings(canary).values():
            attacks.append(stack.enter_context(dial(port)))
            with suppress(ConnectionError):
                attacks[-1].sendall(payload)
        attacks += [stack.enter_context(dial(port)) for _ in range(IDLE)]
        deadline = time.monotonic() + PATIENCE_S
        assert all(is_dropped(each, max(0.1, deadline - time.monotonic())) for each in attacks)


@pytest.mark.parametrize(
    "said",
    [
        b"no JSON",
        json.dumps(introduction(node="1")).encode(),
        json.dumps(introduction(slots=-1)).encode(),
        json.dumps(introduction(hello=[])).encode(),
    ],
)
def test_who_has_the_key_and_introduces_itself_badly_is_told_so(said: bytes) -> None:
    port = free_port()
    with ending(first := node(0, 2, port, "true", environ=LATE)):
        waits(first, port)
        with (caller := call(port)).sock:
            caller.sock.sendall(caller._sealer.seal(Record.INTRODUCTION, said))
            told = answer(caller)
        assert told is not None
        assert told[0] is Record.REFUSAL
        code, _, err = first.rest()
        assert code == 1
        assert "the job cannot start with the node at 127.0.0.1: it has hvdlite" in err


def test_a_first_message_that_was_read_on_the_way_is_answered_once() -> None:
    port, hello = free_port(), Caller(key_of(KEY), 0, 0, 0).hello
    with ending(first := node(0, 2, port, "true", environ=LATE)), ExitStack() as stack:
        waits(first, port)
        for number in range(IDLE):
            caller = stack.enter_context(dial(port))
            caller.sendall(hello)
            assert bool(caller.recv(1)) == (number == 0)
        with ending(second := node(1, 2, port, "true", environ=LATE)):
            assert (first.rest().code, second.rest().code) == (0, 0)


def test_a_node_out_of_range_or_with_an_altered_record_gets_in_nowhere() -> None:
    port = free_port()
    with ending(first := node(0, 2, port, "true", environ=LATE)):
        waits(first, port)
        for number in (0, 2, 1 << 40):
            with (caller := call(port)).sock:
                caller.sock.sendall(caller.seal(Record.INTRODUCTION, **introduction(node=number)))
                assert answer(caller) == (Record.REFUSAL, {"reason": f"there is no node {number} in a job of 2"})
        with (caller := call(port)).sock:
            altered = bytearray(caller.seal(Record.INTRODUCTION, **introduction()))
            altered[40] ^= 1
            caller.sock.sendall(altered)
            assert answer(caller) is None
        with (caller := call(port)).sock:
            caller.sock.sendall(caller.seal(Record.SIGNAL, signum=15))
            assert answer(caller) is None
        with (caller := call(port)).sock:  # one that says nothing more
            assert answer(caller) is None
        assert first.poll() is None


def test_a_node_says_nothing_to_a_stranger_in_the_place_of_node_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        place.settimeout(PATIENCE_S)
        port = port_of(place)
        with ending(second := node(1, 2, port, "true", environ={"HVDLITE_START_TIMEOUT": "4"})):
            connection, _ = place.accept()
            with connection:
                connection.settimeout(PATIENCE_S)
                assert len(connection.recv(1 << 16)) < 200  # a hello with a proof of the key
                connection.sendall(secrets.token_bytes(500))
                assert is_dropped(connection, PATIENCE_S)
            place.close()
            code, _, err = second.rest()
    assert code == 1
    assert f"node 0 was not reached at localhost:{port}" in err


@pytest.mark.faults
def test_a_node_ends_with_node_0_although_its_agent_is_stopped_and_data_waits_for_it() -> None:
    with in_place_of_node_0() as (channel, second):
        guard = welcome(second, channel)
        guard.children()[0].suspend()
        channel.sock.settimeout(2.0)
        with pytest.raises(TimeoutError):  # the node reads no more
            send_without_end(channel)
        NodeConnection(channel, Introduction(1, 2, 1, Hello.describe()), "127.0.0.1").part(Scope.of(0.0))
        code, _, err = second.rest()
    assert code == 1
    assert "node 0 on a is lost: the connection broke: Connection reset by peer" in err


@pytest.mark.faults
def test_a_node_0_that_had_nothing_to_say_for_long_is_not_lost_when_an_agent_ends() -> None:
    with in_place_of_node_0() as (channel, second):
        guard = welcome(second, channel)
        time.sleep(10.5)  # longer than node 0 may be silent once it is asked
        guard.terminate()
        until(lambda: Record.PING in [kind for kind, _ in channel.receive()])
        channel.sock.sendall(channel.seal(Record.PING) + channel.seal(Record.OVER, code=5, text="the reason"))
        assert second.rest().code == 5


def welcome(second: Node, channel: Channel) -> psutil.Process:
    """Lets a node in and waits for the hello of its agent, whose guard is returned."""
    channel.sock.sendall(channel.seal(Record.WELCOME, host="a"))
    until(lambda: Record.STREAM in [kind for kind, _ in channel.receive()])
    (guard,) = psutil.Process(second.pid).children()
    return guard


def send_without_end(channel: Channel) -> None:
    while True:
        channel.sock.sendall(b"".join(channel.seal_stream(encode(Files(bytes(1 << 20))))))
