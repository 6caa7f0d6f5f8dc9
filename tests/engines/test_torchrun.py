"""Jobs that torchrun starts, on one host and on what passes for two."""

from __future__ import annotations

import secrets
import socket

import pytest

from tests.engines.starting import JOB, ROOT, inside_hvdrun, lines, outputs, run, start, torchrun

ON_ONE_HOST = [{"place": [rank, 2, rank, 2, 0, 1], "totals": [1.0, 21.0]} for rank in range(2)]


@pytest.mark.parametrize("options", [[], ["--standalone"]], ids=["plain", "standalone"])
def test_ranks_find_each_other(options: list[str]) -> None:
    told, _ = run(torchrun(*options, "--nproc-per-node", "2", JOB, "sums"))
    assert told == ON_ONE_HOST


def test_ranks_of_torchrun_inside_of_hvdrun_are_refused() -> None:
    told, err = run(inside_hvdrun(1, torchrun("--nproc-per-node", "2", JOB, "sums")), succeeds=False)
    assert told == []
    assert "hvdrun has started torchrun, and torchrun this process" in err


def test_an_attempt_after_a_failure_meets_anew() -> None:
    told, _ = run(torchrun("--nproc-per-node", "2", "--max-restarts", "1", JOB, "second_attempt"))
    assert told == [{"attempt": "1", "total": 2.0}] * 2


def agents(nodes: int = 2) -> list[list[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [
        "--nnodes",
        str(nodes),
        "--nproc-per-node",
        "2",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        str(port),
    ]
    return [torchrun(*options, "--node-rank", str(node), JOB, "sums") for node in range(nodes)]


def test_agents_on_two_hosts_need_a_key() -> None:
    key = {"HVDLITE_SECRET": secrets.token_hex(32)}
    jobs = [start(command, key | {"HVDLITE_HOSTID": f"h{node}"}) for node, command in enumerate(agents())]
    told = [line for job in jobs for line in lines(job)[0]]
    assert [line["place"] for line in told] == [[2 * n + r, 4, r, 2, n, 2] for n in range(2) for r in range(2)]
    assert all(line["totals"] == [6.0, 46.0] for line in told)


def test_the_example_trains_unchanged() -> None:
    example = str(ROOT / "examples/torch_digits.py")
    job = start(torchrun("--nproc-per-node", "2", example, "--epochs", "1"))
    assert "with 2 rank(s)" in outputs(job)[0]
