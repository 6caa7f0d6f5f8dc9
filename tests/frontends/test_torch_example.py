"""The examples on real images: alone and under hvdrun, as their readers run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(ranks: int, example: str, *options: str) -> str:
    """What the example prints, on one rank without a launcher."""
    launcher = [sys.executable, "-m", "hvdlite.launcher.cli", "-np", str(ranks)] if ranks > 1 else []
    command = [*launcher, sys.executable, f"examples/{example}.py", *options]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}  # threads of a small model cost more than they do
    ended = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=90)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_digits_example_reads_97_percent(ranks: int, tmp_path: Path) -> None:
    plot = tmp_path / "curves.png"
    output = run(ranks, "torch_digits", "--target", "0.97", "--plot", str(plot))
    ends = re.findall(rf"final test accuracy (\d+\.\d+)% with {ranks} rank\(s\)$", output, flags=re.MULTILINE)
    assert len(ends) == 1
    assert float(ends[0]) >= 97.0
    assert len(re.findall(r"epoch \d+: loss \d+\.\d+, test accuracy", output)) == 8
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_uneven_shards() -> None:
    output = run(3, "torch_uneven_join", "--epochs", "2", "--target", "0.85")
    assert output.count("ranks took [15, 30, 45] steps, rank 2 the last one") == 2


@pytest.mark.parametrize("ranks", [2, 3])
def test_two_networks_in_process_sets(ranks: int) -> None:
    output = run(ranks, "torch_process_sets", "--epochs", "2", "--target", "0.85")
    assert re.search(r"networks: \d+\.\d+% and \d+\.\d+%$", output, flags=re.MULTILINE)


def test_normalization_over_four_ranks() -> None:
    assert "with 4 rank(s)" in run(4, "torch_sync_batch_norm", "--epochs", "1", "--target", "0.85")


@pytest.mark.parametrize("ranks", [1, 2])
def test_mixed_precision_with_clipping(ranks: int) -> None:
    output = run(ranks, "torch_clipping_amp", "--epochs", "3", "--target", "0.85")
    assert f"on {ranks} of {ranks} rank(s)" in output
