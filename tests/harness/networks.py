"""Test hosts as fixtures: ``network`` is shared and left as it was found, ``own_network`` is for one test."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.harness.hosts import Network, missing

_PATIENCE_S = 3.0  # for sshd to notice that a client is gone


@pytest.fixture(scope="session")
def shared_network() -> Iterator[Network]:
    """The hosts behind ``network``."""
    if reason := missing():
        pytest.skip(reason)
    with Network("a", "b", "c") as network:
        yield network


@pytest.fixture
def network(shared_network: Network) -> Iterator[Network]:
    """Hosts a, b and c. Fails the test that leaves processes, nft tables, files or a broken link on them."""
    yield shared_network
    deadline = time.monotonic() + _PATIENCE_S
    while left := shared_network.leftovers():
        if time.monotonic() > deadline:
            shared_network.clean()
            pytest.fail("the test left on its hosts:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture
def own_network() -> Iterator[Network]:
    """Hosts a, b and c of one test, which may break them. Everything there ends with the test."""
    if reason := missing():
        pytest.skip(reason)
    with Network("a", "b", "c") as network:
        yield network
