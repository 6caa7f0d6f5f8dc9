"""The examples on real images, in ranks that are forked.

Under hvdrun, as their readers run them, are `make demo`, tests/hosts/test_readme.py and test_torch_preemption.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.programs import output_of

ROOT = Path(__file__).resolve().parents[2]


def forked(ranks: int, example: str, *options: str) -> str:
    """Returns the example's output on all ranks, which import torch and scikit-learn only once."""
    return output_of(ranks, ROOT / f"examples/{example}.py", *options, cwd=ROOT)


def also(*ranks: int) -> list[object]:
    """Further numbers of ranks, whose training differs from that of the first by its speed alone."""
    return [pytest.param(number, marks=pytest.mark.faults) for number in ranks]


@pytest.mark.parametrize("ranks", [2, *also(1, 4)])
def test_the_digits_example_reads_97_percent(ranks: int, tmp_path: Path) -> None:
    plot = tmp_path / "curves.png"
    output = forked(ranks, "torch_digits", "--target", "0.97", "--plot", str(plot))
    ends = re.findall(rf"final test accuracy (\d+\.\d+)% with {ranks} rank\(s\)$", output, flags=re.MULTILINE)
    assert len(ends) == 1
    assert float(ends[0]) >= 97.0
    assert len(re.findall(r"epoch \d+: loss \d+\.\d+, test accuracy", output)) == 8
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("ranks", [2, *also(1)])
def test_the_example_for_gpus_falls_back_to_cpus(ranks: int) -> None:
    assert f"with {ranks} rank(s) on cpu" in forked(ranks, "torch_gpu", "--epochs", "6", "--target", "0.93")


def test_uneven_shards() -> None:
    output = forked(3, "torch_uneven_join", "--epochs", "2", "--target", "0.85")
    assert output.count("ranks took [15, 30, 45] steps, rank 2 the last one") == 2


@pytest.mark.parametrize("ranks", [3, *also(2)])
def test_two_networks_in_process_sets(ranks: int) -> None:
    output = forked(ranks, "torch_process_sets", "--epochs", "2", "--target", "0.85")
    assert re.search(r"networks: \d+\.\d+% and \d+\.\d+%$", output, flags=re.MULTILINE)


def test_normalization_over_four_ranks() -> None:
    options = ("--epochs", "1", "--batch-size", "4", "--target", "0.85")
    assert "with 4 rank(s)" in forked(4, "torch_sync_batch_norm", *options)


@pytest.mark.parametrize("ranks", [2, *also(1)])
def test_mixed_precision_with_clipping(ranks: int) -> None:
    output = forked(ranks, "torch_clipping_amp", "--epochs", "3", "--target", "0.85")
    assert f"on {ranks} of {ranks} rank(s)" in output
