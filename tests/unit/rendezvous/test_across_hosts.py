"""The address of rank 0 of a job on several hosts, its listeners, and the addresses of the links."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from hvdlite.rendezvous.across_hosts import locate, own_address


def _resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def getaddrinfo(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        families = [socket.AF_INET6 if ":" in ip else socket.AF_INET for ip in addresses]
        return [(family, 1, 6, "", (ip, port)) for family, ip in zip(families, addresses, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize(
    ("text", "address", "listening"),
    [
        ("192.0.2.7:5000", "tcp://192.0.2.7:5000", ("192.0.2.7", 5000)),
        ("127.0.0.1:5000", "tcp://127.0.0.1:5000", ("127.0.0.1", 5000)),
        ("[::1]:5000", "tcp://[::1]:5000", ("::1", 5000)),
        ("[2001:db8::7]:5000", "tcp://[2001:db8::7]:5000", ("2001:db8::7", 5000)),
    ],
)
def test_an_ip_address_is_where_rank_0_listens(text: str, address: str, listening: tuple[str, int]) -> None:
    where = locate(text, "job")
    assert (where.address, where.listening) == (address, listening)


def test_a_host_whose_name_means_loopback_to_itself_listens_on_all_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolving(monkeypatch, "127.0.1.1")
    assert locate("node1:5000", "job").listening == ("0.0.0.0", 5000)
    assert locate("localhost:5000", "job").listening == ("127.0.1.1", 5000)
    _resolving(monkeypatch, "2001:db8::7", "192.0.2.7", "192.0.2.8")
    assert locate("node1:5000", "job").listening == ("192.0.2.7", 5000)


def test_without_a_port_the_job_chooses_one_that_no_outgoing_connection_gets() -> None:
    ports = {locate("127.0.0.1", f"job {number}").port for number in range(50)}
    assert len(ports) > 40
    assert all(61440 <= port < 65536 for port in ports)
    assert locate("127.0.0.1", "job 1").port == locate("192.0.2.7", "job 1").port


def test_links_listen_on_the_network_on_which_the_ranks_met() -> None:
    hosts = ["a", "a", "b"]
    reaches = ["127.0.1.1", "127.0.1.1", "192.0.2.7"]
    assert own_address(0, hosts, reaches) == own_address(1, hosts, reaches) == "192.0.2.7"
    assert own_address(2, hosts, ["", "", "127.0.0.1"]) == "127.0.0.1"
    assert own_address(0, hosts, ["", "", ""]) == ""
    assert own_address(0, ["a", "a"], ["127.0.0.1", "127.0.0.1"]) == ""
