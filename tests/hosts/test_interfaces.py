"""Which of several interfaces the ranks' links use: one that works, or the one that the user names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.faults import cut
from tests.harness.hosts import Network, missing
from tests.hosts.jobs import hvdrun, lines_by_rank

SHOW = ("sh", "-c", "echo $HVDLITE_ADDRESS")
EVERYTHING_BUT_SSH_ON_ETH0 = ('iif "eth0" tcp sport 1024-65535 tcp dport 1024-65535',)


@pytest.fixture(scope="module")
def two_nics() -> Iterator[Network]:
    if reason := missing():
        pytest.skip(reason)
    with Network("a", "b", nics=2) as network:
        yield network


def addresses(network: Network, *options: str) -> list[str]:
    return [line for (line,) in lines_by_rank(hvdrun(network["a"], "-H", "a:1,b:1", *options, *SHOW)).values()]


@pytest.mark.parametrize("nic", [0, 1])
def test_the_interface_that_the_user_names(two_nics: Network, nic: int) -> None:
    assert addresses(two_nics, "--network-interface", f"eth{nic}") == [host.addresses[nic] for host in two_nics]


def test_an_interface_that_swallows_everything_is_not_taken(two_nics: Network) -> None:
    with cut(two_nics["a"], two_nics["b"], EVERYTHING_BUT_SSH_ON_ETH0):
        assert addresses(two_nics) == [host.addresses[1] for host in two_nics]


def test_a_named_interface_that_does_not_work_is_an_error(two_nics: Network) -> None:
    with cut(two_nics["a"], two_nics["b"], EVERYTHING_BUT_SSH_ON_ETH0):
        ended = hvdrun(two_nics["a"], "-H", "a:1,b:1", "--network-interface", "eth0", *SHOW)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "eth0" in ended.stderr
    assert two_nics["b"].addresses[0] in ended.stderr


def test_an_interface_that_a_host_does_not_have_is_an_error(two_nics: Network) -> None:
    ended = hvdrun(two_nics["a"], "-H", "a:1,b:1", "--network-interface", "eth7", *SHOW)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "eth7" in ended.stderr
