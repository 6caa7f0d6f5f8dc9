"""HVDLITE_RING_CONNECTIONS: what hosts send to each other is spread over so many connections, evenly."""

from __future__ import annotations

import sys

import pytest

from tests.harness.hosts import Network
from tests.hosts.jobs import hvdrun, reported

SENT_MIB = 2 * 16  # by each of two ranks, in two all-reduces
HEADERS = 1.01  # of frames, and what else is said


@pytest.mark.parametrize(
    ("connections", "encrypt"), [(1, "0"), (4, "0"), (4, "1")], ids=["one", "four", "four, encrypted"]
)
def test_all_connections_carry_their_share(network: Network, connections: int, encrypt: str) -> None:
    command = ("-H", "a:1,b:1", sys.executable, "-m", "tests.hosts.carried")
    settings = {"HVDLITE_RING_CONNECTIONS": str(connections), "HVDLITE_ENCRYPT_DATA": encrypt}
    for rank in reported(hvdrun(network["a"], *command, **settings)):
        assert rank["right"]
        assert len(rank["carried"]) == connections
        for carried in rank["carried"]:
            assert SENT_MIB / connections <= float(carried) < HEADERS * SENT_MIB / connections


def test_hosts_that_were_told_different_numbers_say_so(network: Network) -> None:
    program = "export HVDLITE_RING_CONNECTIONS=$((HVDLITE_RANK + 1)); exec \"$0\" -c 'import hvdlite; hvdlite.init()'"
    ended = hvdrun(network["a"], "-H", "a:1,b:1", "sh", "-c", program, sys.executable)
    assert ended.returncode == 1
    assert "connections instead of" in ended.stderr
    assert "HVDLITE_RING_CONNECTIONS must be the same on all ranks" in ended.stderr
