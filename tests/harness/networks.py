"""Test hosts as fixtures: ``network`` is shared and left as it was found, ``own_network`` is for one test."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.harness.hosts import Network, missing
from tests.harness.patience import PROMPT_S


@pytest.fixture(scope="session")
def shared_network() -> Iterator[Network]:
    """The hosts behind ``network``."""
    if reason := missing():
        pytest.skip(reason)
    with Network("a", "b", "c") as network:
        yield network


@pytest.fixture
def network(shared_network: Network) -> Iterator[Network]:
    """Hosts a, b and c. A test that leaves processes, nft tables, files or a broken link on them fails."""
    yield shared_network
    check_left_as_found(shared_network)


@pytest.fixture
def own_network() -> Iterator[Network]:
    """Hosts a, b and c of one test, which may break them. Everything there ends with the test."""
    if reason := missing():
        pytest.skip(reason)
    with Network("a", "b", "c") as network:
        yield network


def check_left_as_found(network: Network) -> None:
    """Fails a test that leaves anything on shared hosts, and removes it."""
    deadline = time.monotonic() + PROMPT_S
    while left := network.leftovers():
        if time.monotonic() > deadline:
            network.clean()
            pytest.fail("the test left on its hosts:\n  " + "\n  ".join(left), pytrace=False)
