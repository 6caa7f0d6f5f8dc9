"""The benchmarks of `make bench-hosts`. No test depends on a measured time."""

from __future__ import annotations

import sys

from tests.harness.hosts import Network
from tests.hosts.jobs import hvdrun, reported

MIB = 1 << 20


def test_what_crosses_the_link_is_counted(network: Network) -> None:
    command = (sys.executable, "-m", "tests.bench.crossing", str(4 * MIB), "2")
    for rank in reported(hvdrun(network["a"], "-H", "a:2,b:2", *command)):
        assert float(rank["median_s"]) > 0
        assert 1.0 < float(rank["sent"]) / (4 * MIB) < 1.03  # theory, and the headers of packets


def test_rings_of_all_kinds_are_compared(network: Network) -> None:
    kinds = ("plain", "checked", "encrypted", "4")
    command = (sys.executable, "-m", "tests.bench.rings", str(MIB), "2", *kinds)
    for rank in reported(hvdrun(network["a"], "-H", "a:1,b:1", *command)):
        assert rank.keys() == set(kinds)
        assert min(map(float, rank.values())) > 0
