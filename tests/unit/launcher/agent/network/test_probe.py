"""The two ends of a connect test on this machine: what is measured, who is turned away, and what strangers cost."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import pytest

from hvdlite.launcher.agent.network.probe import Prober
from hvdlite.launcher.agent.network.probe_listener import PING_BYTES
from hvdlite.launcher.stream.questions import Dial, Listen, Target
from hvdlite.net.handshake import Caller
from tests.harness.patience import PATIENCE_S

HERE = "127.0.0.1"
TOKEN = "c0ffee" * 8


@pytest.fixture
def listening() -> Iterator[Prober]:
    prober = Prober()
    yield prober
    prober.close()


def listen(prober: Prober, **fields: Any) -> dict[str, Any]:
    return prober.listen(Listen(TOKEN, 7, (HERE,), None, PATIENCE_S)._replace(**fields))


def dial(port: int, host: int = 7, address: str = HERE, **fields: Any) -> dict[str, Any]:
    asked = Dial(TOKEN, (Target(host, address, port),), PATIENCE_S, 0.0)
    (result,) = Prober().dial(asked._replace(**fields))["results"]
    return dict(result)


def is_closed(line: socket.socket) -> bool:
    """Returns true if the other end closes the connection without sending anything."""
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_round_trip_is_measured_and_the_bandwidth_if_asked_for(listening: Prober) -> None:
    port = listen(listening)["ports"][HERE]
    assert set(dial(port)) == {"rtt_us"}
    result = dial(port, bulk_s=0.05)
    assert 0 < result["rtt_us"] < 1e6
    assert result["mb_per_s"] > 0


def test_ipv6_works_alike(listening: Prober) -> None:
    port = listen(listening, addresses=["::1"])["ports"]["::1"]
    assert "rtt_us" in dial(port, address="::1")


def test_the_ports_are_those_of_the_range(listening: Prober) -> None:
    with ExitStack() as stack:
        taken = stack.enter_context(socket.create_server((HERE, 0)))
        first = taken.getsockname()[1]
        answer = listen(listening, ports=(first, first + 20))
        assert first < answer["ports"][HERE] <= first + 20
        answer = listen(listening, ports=(first, first))
        assert answer == {"ports": {}, "problems": {HERE: f"ports {first}-{first} are all in use"}}


def test_an_address_of_another_machine_is_a_problem_and_not_an_error(listening: Prober) -> None:
    answer = listen(listening, addresses=["203.0.113.9", HERE])
    assert list(answer["ports"]) == [HERE]
    assert "203.0.113.9" in answer["problems"]


def test_a_port_where_nobody_listens_is_refused() -> None:
    with socket.create_server((HERE, 0)) as gone:
        port = gone.getsockname()[1]
    assert dial(port) == {"problem": "refused"}


def test_a_door_that_never_answers_is_silent() -> None:
    with socket.create_server((HERE, 0)) as mute:
        assert dial(mute.getsockname()[1], timeout_s=0.2) == {"problem": "silent"}


def test_another_host_at_the_address_is_named(listening: Prober) -> None:
    port = listen(listening, host=3)["ports"][HERE]
    assert dial(port, host=7) == {"problem": "other host", "host": 3}


def test_a_listener_with_another_token_is_a_stranger(listening: Prober) -> None:
    port = listen(listening)["ports"][HERE]
    assert dial(port, token="beef" * 12) == {"problem": "stranger"}


def test_a_dialler_without_the_token_is_not_answered(listening: Prober) -> None:
    port = listen(listening)["ports"][HERE]
    with socket.create_connection((HERE, port), timeout=PATIENCE_S) as line:
        line.sendall(Caller(b"another", 0, 0, 0).hello)
        assert is_closed(line)


def test_a_proof_is_worth_nothing_on_another_connection(listening: Prober) -> None:
    port = listen(listening)["ports"][HERE]
    caller = Caller(bytes.fromhex(TOKEN), 0, 0, 0)
    with socket.create_connection((HERE, port), timeout=PATIENCE_S) as line:
        line.sendall(caller.hello)
        proof = caller.take(line.recv(4096))
        line.sendall(proof)
        assert len(line.recv(4096)) == caller.awaits
        line.sendall(bytes(PING_BYTES))
        assert line.recv(4096) == bytes(PING_BYTES)
    with socket.create_connection((HERE, port), timeout=PATIENCE_S) as line:
        line.sendall(caller.hello)
        line.recv(4096)
        line.sendall(proof)
        assert is_closed(line)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" + bytes(64),
        b"\xff" + bytes(8) + b"\x7f" + bytes(64),  # as ZeroMQ begins
        struct.pack("!Q", 2**63) * 64,
        os.urandom(100_000),
    ],
)
def test_garbage_is_dropped_without_a_word_and_the_listener_goes_on(listening: Prober, garbage: bytes) -> None:
    port = listen(listening)["ports"][HERE]
    with socket.create_connection((HERE, port), timeout=PATIENCE_S) as line:
        try:
            line.sendall(garbage)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            assert is_closed(line)
    assert "rtt_us" in dial(port)


def test_a_crowd_that_says_nothing_is_dropped_and_keeps_nobody_out(listening: Prober) -> None:
    port = listen(listening)["ports"][HERE]
    with ExitStack() as stack:
        before = psutil.Process().memory_info().rss
        crowd = [stack.enter_context(socket.create_connection((HERE, port), timeout=PATIENCE_S)) for _ in range(600)]
        assert "rtt_us" in dial(port, timeout_s=PATIENCE_S)
        assert psutil.Process().memory_info().rss - before < 8 << 20
        assert all(is_closed(line) for line in crowd)


def test_only_the_given_addresses_are_listened_on(listening: Prober) -> None:
    before = _listened_on()
    ports = listen(listening, addresses=[HERE, "::1"])["ports"]
    assert _listened_on() - before == set(ports.items())
    listening.close()
    assert _listened_on() == before


def _listened_on() -> set[tuple[str, int]]:
    sockets = psutil.Process().net_connections("tcp")
    return {tuple(one.laddr) for one in sockets if one.status == psutil.CONN_LISTEN}


def test_a_listener_ends_at_the_end_of_its_lifetime(listening: Prober) -> None:
    port = listen(listening, lifetime_s=0.05)["ports"][HERE]
    assert listening._listener is not None
    listening._listener._thread.join(PATIENCE_S)
    assert not listening._listener._thread.is_alive()
    assert dial(port) == {"problem": "refused"}


def test_an_address_to_which_no_route_leads_is_no_silent_one() -> None:
    assert dial(9, address="255.255.255.255") == {"problem": "no route"}  # no TCP connection can go there
