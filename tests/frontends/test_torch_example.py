"""The example on real images: alone and under hvdrun, as its readers run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = [sys.executable, "examples/torch_digits.py", "--target", "0.97"]
HVDRUN = [sys.executable, "-m", "hvdlite.launcher.cli"]


def run(command: list[str]) -> str:
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}  # threads of a small model cost more than they do
    ended = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=90)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_digits_example_reads_97_percent(ranks: int, tmp_path: Path) -> None:
    plot = tmp_path / "curves.png"
    launcher = [*HVDRUN, "-np", str(ranks)] if ranks > 1 else []
    output = run([*launcher, *EXAMPLE, "--plot", str(plot)])
    ends = re.findall(rf"final test accuracy (\d+\.\d+)% with {ranks} rank\(s\)$", output, flags=re.MULTILINE)
    assert len(ends) == 1
    assert float(ends[0]) >= 97.0
    assert len(re.findall(r"epoch \d+: loss \d+\.\d+, test accuracy", output)) == 8
    assert plot.read_bytes().startswith(b"\x89PNG")
