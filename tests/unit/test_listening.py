"""Where ranks listen: addresses as they are written, port ranges, and links over IPv6."""

from __future__ import annotations

import socket

import pytest
import zmq

from hvdlite.core.messages import Ready
from hvdlite.errors import HorovodInternalError
from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.listening import endpoint, split
from hvdlite.runtime.beacon import Beacon
from hvdlite.runtime.zmqroot import ZmqRootLink
from hvdlite.settings import parse_ports
from tests.unit.links import SESSION, close, next_from, settings, zmq_links


@pytest.mark.parametrize(("address", "written"), [("10.0.0.7", "tcp://10.0.0.7:80"), ("fe80::1", "tcp://[fe80::1]:80")])
def test_an_address_survives_being_written(address: str, written: str) -> None:
    assert endpoint(address, 80) == written
    assert split(written) == (address, 80)


@pytest.mark.parametrize("text", ["", "nothing", "tcp://", "tcp://host", "ipc://x:1", "tcp://host:port"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        split(text)


def test_a_port_range_has_both_its_ends() -> None:
    assert parse_ports("") is None
    assert parse_ports("40000-40002") == range(40000, 40003)
    assert parse_ports("40000") == range(40000, 40001)


@pytest.mark.parametrize("text", ["x", "2-1", "0-5", "1-65536", "-", "1-", "1-2-3"])
def test_a_port_range_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HVDLITE_PORT_RANGE"):
        parse_ports(text)


def test_all_listeners_are_within_the_range_and_a_full_one_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, zmq.Context() as context:
        first = taken.getsockname()[1]
        if first > 65000:
            pytest.skip("the system gave a port too near to the last")
        text = f"{first}-{first + 12}"
        links = zmq_links(context, port_range=text)
        ports = [split(link.card.split()[-1])[1] for link in links]  # type: ignore[attr-defined]
        assert len(set(ports)) == 3
        assert set(ports) <= set(range(first + 1, first + 13))
        close(links)
        for listen in (
            lambda: ZmqRootLink(context, Job.create(), SESSION, settings(0, port_range=str(first))),
            lambda: Beacon("127.0.0.1", range(first, first + 1)),
        ):
            with pytest.raises(HorovodInternalError, match=rf"ports {first}-{first} of 127\.0\.0\.1 .*--port-range"):
                listen()


def test_an_address_of_another_host_is_an_error_that_says_so() -> None:
    with zmq.Context() as context:
        for listen in (
            lambda: ZmqRootLink(context, Job.create(), SESSION, settings(0, address="192.0.2.1")),
            lambda: Beacon("192.0.2.1", None),
        ):
            with pytest.raises(HorovodInternalError, match=r"cannot listen on 192\.0\.2\.1 .*--network-interface"):
                listen()


@pytest.mark.skipif(not socket.has_ipv6, reason="this host has no IPv6")
def test_links_run_over_ipv6() -> None:
    with zmq.Context() as context:
        links = root, leaf, other = zmq_links(context, address="::1")
        leaf.send(Ready(0, 1, ()))
        assert next_from(root, leaf, other) == (1, Ready(0, 1, ()))
        close(links)
