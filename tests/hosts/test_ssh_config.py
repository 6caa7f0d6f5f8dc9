"""The user's ssh configuration, and login scripts of the hosts, have the same effect as for ssh itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.hosts import Network
from tests.hosts.jobs import hvdrun, lines_by_rank

CONFIG = Path.home() / ".ssh/config"
SHARED = "Host *\nControlMaster auto\nControlPersist 600\nControlPath /run/ssh-%h\n"


@pytest.fixture
def configure(network: Network) -> Iterator[Callable[[str], None]]:
    """Writes the user's configuration of ssh on host a."""

    def write(text: str) -> None:
        network["a"].check("sh", "-c", f'printf %s "$1" > {CONFIG}', "sh", text)

    yield write
    network["a"].check("rm", "-f", str(CONFIG))


def test_no_shared_connection_is_left_behind(network: Network, configure: Callable[[str], None]) -> None:
    configure(SHARED)
    assert lines_by_rank(hvdrun(network["a"], "-H", "b:1", "echo", "there")) == {0: ["there"]}
    assert network["a"].processes() == []


def test_a_shared_connection_that_is_open_is_used(network: Network, configure: Callable[[str], None]) -> None:
    configure(SHARED)
    try:
        network["a"].check("ssh", "b", "true")
        ended = hvdrun(network["a"], "-H", "b:1", "--ssh-args", "-p 2222", "echo", "there")  # a port that nobody has
        assert lines_by_rank(ended) == {0: ["there"]}
    finally:
        network["a"].check("ssh", "-O", "exit", "b")


def test_a_jump_host_is_taken(network: Network, configure: Callable[[str], None]) -> None:
    configure("Host c\nProxyJump b\n")
    (line,) = lines_by_rank(hvdrun(network["a"], "-H", "c:1", "sh", "-c", "echo $SSH_CLIENT"))[0]
    assert line.split()[0] == network["b"].address
