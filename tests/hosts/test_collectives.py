"""Every collective is exact among ranks of several hosts."""

from __future__ import annotations

import json
import sys

import pytest

from tests.harness.hosts import Network
from tests.hosts.jobs import lines_by_rank
from tests.hosts.starting import Start

GRID = "import json; from tests.multiproc.test_grid import run_grid; print(json.dumps(run_grid({step})))"


@pytest.mark.parametrize("start", ["ssh", pytest.param("nodes", marks=pytest.mark.faults)], indirect=True)
@pytest.mark.parametrize(
    ("hosts", "step"),
    [
        ("a:2,b:2", 5),  # a fifth of the cases, which has all dtypes and ops
        pytest.param("a:2,b:2", 1, marks=pytest.mark.faults),
        pytest.param("a:1,b:2,c:1", 1, marks=pytest.mark.faults),
        pytest.param("b:1,c:1", 1, marks=pytest.mark.faults),
    ],
)
def test_all_collectives_dtypes_and_ops(network: Network, start: Start, hosts: str, step: int) -> None:
    ended = start.run(network, hosts, sys.executable, "-c", GRID.format(step=step))
    for rank, (line,) in lines_by_rank(ended).items():
        failures = json.loads(line)
        assert failures, f"rank {rank} ran nothing"
        assert {kind: lines for kind, lines in failures.items() if lines} == {}
