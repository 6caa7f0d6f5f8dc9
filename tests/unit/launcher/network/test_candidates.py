"""Candidate addresses, their order, and the message where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hvdlite.errors import CannotStart
from hvdlite.launcher.agent.network.interfaces import describe_network
from hvdlite.launcher.network.candidates import Candidate, Network, network_environment, rank_candidates
from hvdlite.launcher.stream.fields import read


def interface(name: str, *addresses: str, **facts: Any) -> dict[str, Any]:
    usual = dict(is_up=True, is_loopback=False, is_virtual=False, mtu=1500, speed_mbps=1000)
    return {"name": name, "addresses": list(addresses), **usual, **facts}


def network(host: str, *interfaces: dict[str, Any]) -> Network:
    loopback = interface("lo", "127.0.0.1/8", "::1/128", is_loopback=True, speed_mbps=0)
    return read(Network, {"network": f"of {host}", "interfaces": [loopback, *interfaces]})


def ranked(wanted: Sequence[str] = (), **hosts: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    candidates = rank_candidates({host: network(host, *rows) for host, rows in hosts.items()}, wanted)
    return {host: [one.address for one in listed] for host, listed in candidates.items()}


def test_the_loopback_and_what_is_down_and_link_local_are_no_candidates() -> None:
    rows = [interface("eth0", "10.0.0.1/24", "fe80::1/64"), interface("eth1", "10.1.0.1/24", is_up=False)]
    assert ranked(a=rows) == {"a": ["10.0.0.1"]}


def test_an_address_that_two_hosts_have_is_none() -> None:
    docker = interface("docker0", "172.17.0.1/16", is_virtual=True)
    hosts = {name: [docker, interface("eth0", f"10.0.0.{n}/24")] for n, name in enumerate("abc", 1)}
    assert ranked(**hosts) == {"a": ["10.0.0.1"], "b": ["10.0.0.2"], "c": ["10.0.0.3"]}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([interface("slow", "10.0.0.1/24"), interface("fast", "10.1.0.1/24", speed_mbps=100_000)], "10.1.0.1"),
        (
            [interface("br-7", "10.1.0.1/24", is_virtual=True, speed_mbps=10_000), interface("eth0", "10.0.0.1/24")],
            None,
        ),
        ([interface("bmc", "169.254.3.1/16", speed_mbps=10_000), interface("eth0", "10.0.0.1/24")], None),
        ([interface("eth0", "fd00::1/64", "10.0.0.1/24")], None),
        ([interface("old", "fd00::1/64", speed_mbps=10_000), interface("eth0", "10.0.0.1/24")], "fd00::1"),
    ],
)
def test_what_comes_first_on_one_host(rows: list[dict[str, Any]], expected: str | None) -> None:
    assert ranked(a=rows)["a"][0] == (expected or "10.0.0.1")


def test_a_subnet_that_all_hosts_have_comes_before_a_faster_one_that_some_have() -> None:
    fast = {"speed_mbps": 100_000}
    a = [interface("ib0", "10.9.0.1/24", **fast), interface("eth0", "10.0.0.1/24")]
    b = [interface("ib0", "10.9.0.2/24", **fast), interface("eth0", "10.0.0.2/24")]
    c = [interface("ens3", "10.0.0.3/24")]
    assert ranked(a=a, b=b) == {"a": ["10.9.0.1", "10.0.0.1"], "b": ["10.9.0.2", "10.0.0.2"]}
    assert ranked(a=a, b=b, c=c) == {"a": ["10.0.0.1", "10.9.0.1"], "b": ["10.0.0.2", "10.9.0.2"], "c": ["10.0.0.3"]}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["eth1"], ["10.1.0.1"]),
        (["eth1", "eth0"], ["10.1.0.1", "10.0.0.1", "fd00::1"]),
        (["eth*"], ["10.0.0.1", "fd00::1", "10.1.0.1"]),
        (["10.1.0.1"], ["10.1.0.1"]),
        (["10.0.0.0/8"], ["10.0.0.1", "10.1.0.1"]),
        (["10.1.0.9/24", "fd00::/16"], ["10.1.0.1", "fd00::1"]),
    ],
)
def test_the_user_names_interfaces_addresses_or_subnets(wanted: list[str], expected: list[str]) -> None:
    rows = [interface("eth0", "10.0.0.1/24", "fd00::1/64"), interface("eth1", "10.1.0.1/24", speed_mbps=100)]
    assert sorted(ranked(wanted, a=rows)["a"]) == sorted(expected)
    assert ranked(wanted, a=rows)["a"][0] == expected[0]


def test_a_host_without_the_named_interface_is_named_with_what_it_has() -> None:
    a, b = [interface("eth0", "10.0.0.1/24"), interface("ib0", "10.9.0.1/24")], [interface("ens3", "10.0.0.2/24")]
    with pytest.raises(CannotStart, match=r"on b: it has no network interface ib0; it has ens3 10.0.0.2") as caught:
        ranked(["ib0"], a=a, b=b)
    assert caught.value.host == "b"
    assert caught.value.exit_code == 2


def test_a_name_that_no_host_has_is_a_mistake_also_beside_others() -> None:
    with pytest.raises(CannotStart, match=r"no host has a network interface etho; a has eth0 10.0.0.1"):
        ranked(["etho", "eth0"], a=[interface("eth0", "10.0.0.1/24")], b=[interface("eth0", "10.0.0.2/24")])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no other host can dial it: it has no address but the loopback's"),
        ([interface("docker0", "172.17.0.1/16")], "other hosts have the same addresses: docker0 172.17.0.1"),
    ],
)
def test_a_host_that_nobody_can_dial_is_named(rows: list[dict[str, Any]], message: str) -> None:
    other = [interface("docker0", "172.17.0.1/16"), interface("eth0", "10.0.0.2/24")]
    with pytest.raises(CannotStart, match=message) as caught:
        ranked(alone=rows, other=other)
    assert caught.value.host == "alone"


@pytest.mark.parametrize(
    "answer",
    [{}, {"network": "n", "interfaces": [{}]}, {"network": "n", "interfaces": [interface("eth0", "10.0.0.400/24")]}],
)
def test_an_answer_that_is_none_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        read(Network, answer)


def test_nccl_and_gloo_hear_of_interfaces_that_the_user_named_unless_they_were_told() -> None:
    (candidate,) = rank_candidates({"a": network("a", interface("eth0", "10.0.0.1/24"))})["a"]
    assert network_environment(candidate, (), {}) == {"HVDLITE_ADDRESS": "10.0.0.1"}
    assert network_environment(candidate, ["eth0"], {"NCCL_SOCKET_IFNAME": "ib0"}) == {
        "HVDLITE_ADDRESS": "10.0.0.1",
        "HOROVOD_GLOO_IFACE": "eth0",
    }
    assert network_environment(None, ["eth0"], {}) == {"HVDLITE_ADDRESS": "127.0.0.1"}


def test_the_interfaces_of_this_machine() -> None:
    here = read(Network, describe_network())
    loopback = next(one for one in here.interfaces if one.is_loopback)
    assert loopback.is_up
    assert "127.0.0.1/8" in map(str, loopback.addresses)
    assert here.network == read(Network, describe_network()).network


def test_a_candidate_is_shown_with_its_interface() -> None:
    one: Candidate = rank_candidates({"a": network("a", interface("eth0", "10.0.0.1/24"))})["a"][0]
    assert str(one) == "10.0.0.1 (eth0)"
