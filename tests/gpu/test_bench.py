"""The benchmark on GPUs: every mode, on the fakes. No time decides anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvdlite.bench.cli import main
from hvdlite.bench.measuring.report import Row
from tests.gpu.torch_fake.ranks import with_gpus
from tests.harness import process_ranks
from tests.harness.benchmarks import rows_of
from tests.harness.forkserver import ForkServer


def _bench(options: tuple[str, ...]) -> int:
    with_gpus()
    return main([*options, "--device", "cuda"])


def _measured(server: ForkServer, file: Path, *options: str) -> list[Row]:
    outcomes = process_ranks(2, _bench, (*options, "--json", str(file)), server=server)
    assert [outcome.result() for outcome in outcomes] == [0, 0], outcomes[0].output
    return rows_of(file, [line for line in outcomes[0].output.splitlines() if not line.startswith("# GPU")])


@pytest.mark.parametrize(
    ("options", "systems"),
    [
        (("--sizes", "1K,64K", "--iters", "3"), ["hvdlite"] * 2),
        (("--many", "20", "4K", "--fuse", "--iters", "2"), ["hvdlite", "grouped", "packed"]),
        (("--parts", "--sizes", "1K", "--iters", "3"), ["submit", "negotiate", "launch", "return", "kernel", "whole"]),
        (("--train", "--model", "tiny", "--iters", "2", "--precision", "bfloat16"), ["bare", "hvdlite"]),
    ],
)
def test_modes(options: tuple[str, ...], systems: list[str], torch_ranks: ForkServer, tmp_path: Path) -> None:
    rows = _measured(torch_ranks, tmp_path / "rows.json", *options)
    assert [row.system for row in rows] == systems
    assert all(row.median_us >= 0 for row in rows)


def test_a_trace_has_the_submits_inside_backward(torch_ranks: ForkServer, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    options = ("--train", "--model", "tiny", "--iters", "1", "--trace", str(file))
    rows = _measured(torch_ranks, tmp_path / "rows.json", *options)
    assert [row.system for row in rows] == ["backward", "submits", "after", "whole"]
    assert rows[1].op == "10 of 10 inside backward"
    events = json.loads(file.read_text())["traceEvents"]
    assert sum(event["name"].startswith("submit ") for event in events) == 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--compare", "gloo"), "compares with nccl only"),
        (("--fuse",), "--fuse needs --many"),
        (("--model", "tiny"), "--model needs --train"),
        (("--parts", "--fuse"), "--fuse needs --many"),
    ],
)
def test_what_gpus_do_not_have(options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*options, "--device", "cuda"]) == 2
    assert said in capsys.readouterr().err
