"""The benchmark on GPUs: every mode, on the fakes. No time decides anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import main as take_apart
from hvdlite.bench.cli import main
from hvdlite.bench.measuring.report import Row
from tests.gpu.torch_fake.ranks import with_gpus
from tests.harness import process_ranks
from tests.harness.benchmarks import rows_of
from tests.harness.forkserver import ForkServer


def _bench(options: tuple[str, ...]) -> int:
    with_gpus()
    return main([*options, "--device", "cuda"])


def _take_apart(options: tuple[str, ...]) -> int:
    with_gpus()
    return take_apart(options)


def _measured(
    server: ForkServer, file: Path, *options: str, bench: Callable[[tuple[str, ...]], int] = _bench
) -> list[Row]:
    outcomes = process_ranks(2, bench, (*options, "--json", str(file)), server=server)
    assert [outcome.result() for outcome in outcomes] == [0, 0], outcomes[0].output
    return rows_of(file, [line for line in outcomes[0].output.splitlines() if not line.startswith("# GPU")])


@pytest.mark.parametrize(
    ("options", "systems"),
    [
        (("--sizes", "1K,64K", "--iters", "3"), ["hvdlite"] * 2),
        (("--many", "20", "4K", "--iters", "2"), ["hvdlite"]),
        (("--train", "--model", "tiny", "--iters", "2", "--precision", "bfloat16"), ["bare", "hvdlite"]),
    ],
)
def test_modes(options: tuple[str, ...], systems: list[str], torch_ranks: ForkServer, tmp_path: Path) -> None:
    rows = _measured(torch_ranks, tmp_path / "rows.json", *options)
    assert [row.system for row in rows] == systems
    assert all(row.median_us >= 0 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "systems"),
    [
        (("fusion", "20", "4K", "--iters", "2"), ["hvdlite", "grouped", "packed"]),
        (("parts", "--sizes", "1K", "--iters", "3"), ["submit", "negotiate", "launch", "return", "kernel", "whole"]),
    ],
)
def test_calls_are_taken_apart(
    arguments: tuple[str, ...], systems: list[str], torch_ranks: ForkServer, tmp_path: Path
) -> None:
    rows = _measured(torch_ranks, tmp_path / "rows.json", *arguments, bench=_take_apart)
    assert [row.system for row in rows] == systems


def test_a_trace_has_the_submits_inside_backward(torch_ranks: ForkServer, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    arguments = ("trace", str(file), "--model", "tiny", "--iters", "1")
    rows = _measured(torch_ranks, tmp_path / "rows.json", *arguments, bench=_take_apart)
    assert [row.system for row in rows] == ["backward", "submits", "after", "whole"]
    assert rows[1].op == "10 of 10 inside backward"
    events = json.loads(file.read_text())["traceEvents"]
    assert sum(event["name"].startswith("submit ") for event in events) == 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--compare", "gloo"), "compares with nccl only"),
        (("--model", "tiny"), "--model needs"),
    ],
)
def test_what_gpus_do_not_have(options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*options, "--device", "cuda"]) == 2
    assert said in capsys.readouterr().err
