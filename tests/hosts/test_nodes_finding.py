"""How nodes find node 0: in any order, by names that resolve later, and by one of several addresses."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from hvdlite.launcher.nodes import node as joining
from hvdlite.launcher.nodes.place import Master, NodePlace
from hvdlite.scope import Scope
from tests.harness.patience import PATIENCE_S, until
from tests.hosts.nodes import ending, free_port, node, start
from tests.launcher.hvdrun import read_until

SOON = ("--start-timeout", "2")
LATE = {"HVDLITE_START_TIMEOUT": "10000"}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for names of a test's own")


def names(tmp_path: Path, *lines: str) -> tuple[str, ...]:
    """A container whose file of host names has ``lines``, and changes with it."""
    (tmp_path / "hosts").write_text("".join(f"{line}\n" for line in lines))
    return ("unshare", "--mount", "sh", "-c", f'mount --bind {tmp_path}/hosts /etc/hosts && exec "$@"', "sh")


def test_nodes_may_start_in_any_order() -> None:
    port = free_port()
    second = node(1, 2, port, "true")
    with ending(second):
        assert second.stderr is not None
        said = read_until(second.stderr.fileno(), lambda found: b"\n" in found)
        assert said.decode() == f"hvdrun: waiting for node 0 at localhost:{port}: nobody listens there\n"
        with ending(first := node(0, 2, port, "true")):
            assert (first.rest().code, second.rest().code) == (0, 0)


def test_a_node_that_does_not_find_node_0_says_why_and_gives_up() -> None:
    lines = {"localhost": "nobody listens there", "no-such-host.invalid": "the name does not resolve"}
    for host, reason in lines.items():
        place = ("--node-rank", "1", "--nnodes", "2", "--master", f"{host}:{free_port()}")
        with ending(alone := start((*place, *SOON, "true"))):
            code, _, err = alone.rest()
        assert code == 1
        assert f"node 0 was not reached at {host}" in err
        assert f"within 2 s: {reason}" in err
        assert "--start-timeout" in err


def test_a_node_gives_up_a_node_0_that_has_let_it_in_and_is_stopped() -> None:
    port = free_port()
    with ending(first := node(0, 3, port, "true", environ=LATE), second := node(1, 3, port, *SOON, "true")):
        until(lambda: bool(psutil.Process(second.pid).children()))  # its agent, which it starts once it is let in
        first.send_signal(signal.SIGSTOP)
        code, _, err = second.rest()
    assert code == 1
    assert f"node 0 was not reached at localhost:{port} within 2 s: it let this node in, and has given no sign" in err
    assert "--start-timeout" in err


@needs_root
def test_a_node_waits_for_the_name_of_node_0(tmp_path: Path) -> None:
    container, port = names(tmp_path, "127.0.0.1 localhost"), free_port()
    words = ("--nnodes", "2", "--master", f"train-0.train:{port}", "-ppn", "1", "true")
    with ending(second := start(("--node-rank", "1", *words), container=container)):
        assert second.stderr is not None
        read_until(second.stderr.fileno(), lambda found: b"the name does not resolve" in found)
        with (tmp_path / "hosts").open("a") as file:
            file.write("127.0.0.1 train-0.train\n")
        with ending(first := start(("--node-rank", "0", *words), container=container)):
            assert (first.rest().code, second.rest().code) == (0, 0)


def test_an_address_of_node_0_that_does_not_answer_leaves_time_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, float]] = []

    def no_answer(address: str, key: bytes, scope: Scope) -> NoReturn:
        tried.append((address, scope.deadline))
        raise TimeoutError

    monkeypatch.setattr(joining, "shake_hands", no_answer)
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 0, "", where) for where in (("fd00::1", 5, 0, 0), ("fe80::1", 5, 0, 3))
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    scope = Scope.of(PATIENCE_S)
    with pytest.raises(joining._NotYet, match="no answer"):
        joining._attempt(NodePlace(1, 2, Master("node0", 5)), b"", scope)
    (first, given), (second, left) = tried
    assert (first, second) == ("tcp://[fd00::1]:5", "tcp://[fe80::1%3]:5")
    assert given < scope.deadline - PATIENCE_S / 3
    assert left == pytest.approx(scope.deadline)


@needs_root
@pytest.mark.skipif(not Path("/proc/sys/net/ipv6").exists(), reason="needs IPv6")
def test_node_0_is_found_over_ipv4_where_ipv6_has_its_own_ports(tmp_path: Path) -> None:
    """Node 0 listens at all of its addresses, since its name does not say which is meant."""
    both = """
ip link set lo up
echo 1 > /proc/sys/net/ipv6/bindv6only
JOB_COMPLETION_INDEX=1 "$@" &
JOB_COMPLETION_INDEX=0 "$@"
wait $!
"""
    container = (*names(tmp_path, "127.0.0.1 node0"), "unshare", "--net", "sh", "-c", both, "sh")
    place = ("--nnodes", "2", "--master", "node0", "-ppn", "1", "--start-timeout", "20")
    with ending(nodes := start((*place, "true"), container=container)):
        assert nodes.rest().code == 0


@needs_root
def test_the_name_of_node_0_may_begin_with_a_digit() -> None:
    container = ("unshare", "--uts", "sh", "-c", 'hostname 0a && exec "$@"', "sh")
    place = ("--node-rank", "0", "--nnodes", "2", "--master", f"0a:{free_port()}")
    with ending(alone := start((*place, *SOON, "true"), container=container)):
        assert "node 1 of 2 did not come" in alone.rest().err
