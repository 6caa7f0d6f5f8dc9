"""The choice of a network between hosts with two: broken ones are detected, reported or avoided."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.harness.faults import rule
from tests.harness.hosts import Host, Network, missing
from tests.harness.networks import check_left_as_found
from tests.hosts.jobs import hvdrun, reported

HOSTS = ("-H", "a:1,b:1,c:1")
PORTS = range(40000, 40101)
CALLS = "tcp dport != 22 tcp flags & (syn | ack) == syn"  # all new connections but those of ssh
TELL = (
    "python",
    "-S",
    "-c",
    "import json, os; print(json.dumps({name: os.environ.get(name, '') for name in "
    "('HVDLITE_ADDRESS', 'NCCL_SOCKET_IFNAME', 'HOROVOD_GLOO_IFACE', 'MASTER_ADDR')}))",
)


@pytest.fixture(scope="module")
def hosts_of_two_networks() -> Iterator[Network]:
    """Hosts a, b and c: eth0 in 10.97.0.0/24, eth1 in 10.98.0.0/24."""
    if reason := missing():
        pytest.skip(reason)
    with Network("a", "b", "c", nics=2) as network:
        yield network


@pytest.fixture
def hosts(hosts_of_two_networks: Network) -> Iterator[Network]:
    """The same, left as they were found."""
    yield hosts_of_two_networks
    check_left_as_found(hosts_of_two_networks)


def test_verbose_tells_the_address_of_each_host(hosts: Network) -> None:
    ended = hvdrun(hosts["a"], *HOSTS, "--network-interface", "eth1", "--verbose", "true")
    assert ended.returncode == 0, ended.stderr
    for number, host in enumerate("abc", 1):
        assert f"hvdrun: the others reach {host} at 10.98.0.{number} (eth1)\n" in ended.stderr


def addresses(hosts: Network, *options: str) -> list[str]:
    return [found["HVDLITE_ADDRESS"] for found in reported(hvdrun(hosts["a"], *HOSTS, *options, *TELL))]


@contextmanager
def extra_interface(host: Host, name: str, address: str) -> Iterator[None]:
    """A bridge without ports, as docker makes one on every host."""
    host.check("ip", "link", "add", name, "type", "bridge")
    try:
        host.check("ip", "address", "add", address, "dev", name)
        host.check("ip", "link", "set", name, "up")
        yield
    finally:
        host.check("ip", "link", "delete", name)


def test_the_first_of_two_networks_that_work_is_used(hosts: Network) -> None:
    ranks = reported(hvdrun(hosts["a"], *HOSTS, *TELL))
    assert [found["HVDLITE_ADDRESS"] for found in ranks] == ["10.97.0.1", "10.97.0.2", "10.97.0.3"]
    assert {found["MASTER_ADDR"] for found in ranks} == {"10.97.0.1"}
    assert {found["NCCL_SOCKET_IFNAME"] for found in ranks} == {""}


def test_a_network_that_swallows_packets_is_gone_around(hosts: Network) -> None:
    with rule(hosts["b"], "prerouting", f"iifname eth0 {CALLS} drop"):
        assert addresses(hosts) == ["10.97.0.1", "10.98.0.2", "10.97.0.3"]


def test_one_host_that_does_not_reach_another_is_enough_to_change_its_address(hosts: Network) -> None:
    with rule(hosts["b"], "prerouting", f"iifname eth0 ip saddr 10.97.0.3 {CALLS} drop"):
        assert addresses(hosts) == ["10.97.0.1", "10.98.0.2", "10.97.0.3"]


def test_addresses_that_all_hosts_have_are_no_candidates(hosts: Network) -> None:
    a, b, c = hosts
    with (
        extra_interface(a, "docker0", "172.17.0.1/16"),
        extra_interface(b, "docker0", "172.17.0.1/16"),
        extra_interface(c, "docker0", "172.17.0.1/16"),
    ):
        assert addresses(hosts) == ["10.97.0.1", "10.97.0.2", "10.97.0.3"]
        ended = hvdrun(a, *HOSTS, "--network-interface", "docker0", "true")
        assert ended.returncode == 1
        assert "no other host can dial it: other hosts have the same addresses: docker0 172.17.0.1" in ended.stderr


@pytest.mark.parametrize("name", ["eth1", "10.98.0.0/16"])
def test_the_user_names_the_interface_and_other_libraries_hear_of_it(hosts: Network, name: str) -> None:
    ranks = reported(hvdrun(hosts["a"], *HOSTS, "--network-interface", name, *TELL))
    assert [found["HVDLITE_ADDRESS"] for found in ranks] == ["10.98.0.1", "10.98.0.2", "10.98.0.3"]
    assert {found["NCCL_SOCKET_IFNAME"] for found in ranks} == {"eth1"}
    assert {found["HOROVOD_GLOO_IFACE"] for found in ranks} == {"eth1"}


def test_ipv6_addresses_can_be_named(hosts: Network) -> None:
    for number, host in enumerate(hosts, 1):
        host.check("ip", "address", "add", f"fd97::{number}/64", "dev", "eth1", "nodad")
    try:
        assert addresses(hosts, "--network-interface", "fd97::/16") == ["fd97::1", "fd97::2", "fd97::3"]
    finally:
        for number, host in enumerate(hosts, 1):
            host.check("ip", "address", "delete", f"fd97::{number}/64", "dev", "eth1")


def test_a_host_without_the_named_interface_is_named_with_what_it_has(hosts: Network) -> None:
    with extra_interface(hosts["a"], "ib0", "10.99.0.1/24"), extra_interface(hosts["b"], "ib0", "10.99.0.2/24"):
        ended = hvdrun(hosts["a"], *HOSTS, "--network-interface", "ib0", "true")
    assert ended.returncode == 2
    assert "on c: it has no network interface ib0; it has eth0 10.97.0.3, eth1 10.98.0.3" in ended.stderr


def test_when_no_address_works_the_report_says_who_reached_whom_and_nothing_starts(hosts: Network) -> None:
    drops = f"iifname eth0 {CALLS} drop", f"iifname eth1 ip saddr 10.98.0.3 {CALLS} drop"
    with rule(hosts["b"], "prerouting", *drops):
        ended = hvdrun(hosts["a"], *HOSTS, "sh", "-c", "echo started")
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "b is not reached by all other hosts:" in ended.stderr
    assert "10.97.0.2 (eth0)   not by a, c: no answer within 2 s" in ended.stderr
    assert "10.98.0.2 (eth1)   reached by a; not by c: no answer within 2 s" in ended.stderr
    assert "--port-range" in ended.stderr
    assert "the hosts do not reach each other: no address of b works for all others." in ended.stderr


def test_a_function_that_runs_nowhere_raises_and_the_report_is_shown(hosts: Network) -> None:
    program = "import hvdlite, os\nif __name__ == '__main__':\n    hvdlite.run(os.getpid, np=2, hosts='a:1,b:1')"
    with rule(hosts["b"], "input", f"{CALLS} reject with tcp reset"):
        ended = hosts["a"].run("python", "-c", program)
    assert ended.returncode == 1
    assert "10.97.0.2 (eth0)   not by a: connection refused" in ended.stderr
    assert "LaunchError: the hosts do not reach each other: no address of b works" in ended.stderr


@pytest.mark.faults
def test_a_network_that_carries_only_small_packets_is_gone_around_or_told(hosts: Network) -> None:
    with rule(hosts["b"], "prerouting", "iifname eth0 tcp dport != 22 meta length > 1000 drop"):
        assert addresses(hosts) == ["10.98.0.1", "10.98.0.2", "10.98.0.3"]  # in both directions
        ended = hvdrun(hosts["a"], *HOSTS, "--network-interface", "eth0", "true")
    assert ended.returncode == 1
    assert "10.97.0.2 (eth0)   not by a, c: small packets pass, large ones vanish" in ended.stderr
    assert "mtu" in ended.stderr


def test_behind_a_firewall_the_ports_that_it_lets_through_are_enough(hosts: Network) -> None:
    ports = f"{PORTS[0]}-{PORTS[-1]}"
    closed = f"{CALLS} tcp dport != {ports} reject with tcp reset"
    with rule(hosts["a"], "input", closed), rule(hosts["b"], "input", closed), rule(hosts["c"], "input", closed):
        refused = hvdrun(hosts["a"], *HOSTS, "true")
        assert refused.returncode == 1
        assert "connection refused" in refused.stderr
        assert addresses(hosts, "--port-range", ports) == ["10.97.0.1", "10.97.0.2", "10.97.0.3"]
