"""Listeners of ranks: addresses as they are written, port ranges, and links over IPv6."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from hvdlite.control.liveness_probe import LivenessListener
from hvdlite.control.zmqroot import ZmqRootLink
from hvdlite.errors import HorovodInternalError
from hvdlite.negotiation.messages import Ready
from hvdlite.net.listening import endpoint, split
from hvdlite.settings import Settings
from tests.harness.members import member
from tests.unit.links import close, next_from, zmq_links


@pytest.mark.parametrize(("address", "written"), [("10.0.0.7", "tcp://10.0.0.7:80"), ("fe80::1", "tcp://[fe80::1]:80")])
def test_an_address_survives_being_written(address: str, written: str) -> None:
    assert endpoint(address, 80) == written
    assert split(written) == (address, 80)


@pytest.mark.parametrize("text", ["", "nothing", "tcp://", "tcp://host", "ipc://x:1", "tcp://host:port"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        split(text)


def a_taken_port(below: int) -> socket.socket:
    """A listener at a port with room for a range after it; the system gives most of them there."""
    with ExitStack() as too_high:
        while (taken := socket.create_server(("127.0.0.1", 0))).getsockname()[1] >= below:
            too_high.enter_context(taken)
        return taken


def test_all_listeners_are_within_the_range_and_a_full_one_is_an_error() -> None:
    with a_taken_port(below=65_000) as taken:
        first = taken.getsockname()[1]
        text = f"{first}-{first + 12}"
        links = zmq_links(port_range=text)
        ports = [split(link.address.split()[-1])[1] for link in links]  # type: ignore[attr-defined]
        assert len(set(ports)) == 3
        assert set(ports) <= set(range(first + 1, first + 13))
        close(links)
        for listen in (
            lambda: ZmqRootLink(member(0, "ab"), Settings(port_range=str(first))),
            lambda: LivenessListener("127.0.0.1", range(first, first + 1)),
        ):
            with pytest.raises(
                HorovodInternalError, match=rf"127\.0\.0\.1: ports {first}-{first} .*HVDLITE_PORT_RANGE"
            ):
                listen()


@pytest.mark.parametrize("address", ["192.0.2.1", "eth0", "10.0.0.300"])
def test_what_is_no_address_of_this_host_is_an_error_that_says_so(address: str) -> None:
    for listen in (
        lambda: ZmqRootLink(member(0, "ab"), Settings(address=address)),
        lambda: LivenessListener(address, None),
    ):
        with pytest.raises(HorovodInternalError, match=rf"cannot listen on {address} .*--network-interface"):
            listen()


def test_a_port_on_which_another_began_to_listen_just_now_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.bind(("127.0.0.1", 0))
        first = rival.getsockname()[1]
        listening = socket.socket.listen

        def listen_second(own: socket.socket, backlog: int) -> None:
            if own.getsockname()[1] == first:
                listening(rival, backlog)
            listening(own, backlog)

        monkeypatch.setattr(socket.socket, "listen", listen_second)
        listener = LivenessListener("127.0.0.1", range(first, first + 9))
        assert split(listener.endpoint)[1] > first
        listener.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_links_run_over_ipv6() -> None:
    links = root, leaf, other = zmq_links(address="::1")
    leaf.send(Ready(0, 1, ()))
    assert next_from(root, leaf, other) == (1, Ready(0, 1, ()))
    close(links)
