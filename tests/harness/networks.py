"""Test hosts for tests: ``network`` is shared by all that leave it as they found it, ``own_network`` is one test's."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.harness.hosts import Network, missing

_PATIENCE_S = 3.0  # for sshd to notice that a client is gone


@pytest.fixture(scope="session")
def _shared_network() -> Iterator[Network]:
    if reason := missing():
        pytest.skip(reason)
    with Network("a", "b", "c") as network:
        yield network


@pytest.fixture
def network(_shared_network: Network) -> Iterator[Network]:
    """Hosts a, b and c. Fails the test that leaves processes, nft tables, files or a broken link on them."""
    yield _shared_network
    deadline = time.monotonic() + _PATIENCE_S
    while left := _shared_network.leftovers():
        if time.monotonic() > deadline:
            _shared_network.clean()
            pytest.fail("the test left on its hosts:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture
def own_network() -> Iterator[Network]:
    """Hosts a, b and c of one test, which may break them. Everything there ends with the test."""
    if reason := missing():
        pytest.skip(reason)
    with Network("a", "b", "c") as network:
        yield network
