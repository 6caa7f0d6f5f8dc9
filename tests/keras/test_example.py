"""The example on real images, under hvdrun as its readers run it, with each back end and several numbers of ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.harness.patience import PATIENCE_S
from tests.house.tree import ROOT
from tests.keras.conftest import surroundings


@pytest.mark.parametrize(("backend", "ranks"), [("jax", 1), ("tensorflow", 2), ("torch", 2), ("jax", 4)])
def test_the_digits_example_reads_97_percent(backend: str, ranks: int) -> None:
    hvdrun = [sys.executable, "-m", "hvdlite.launcher.cli", "-np", str(ranks)]
    command = [*hvdrun, sys.executable, "examples/keras_digits.py", "--target", "0.97"]
    variables = {**os.environ, **surroundings(backend), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    pattern = rf"final test accuracy (\d+\.\d+)% with {ranks} rank\(s\) on {backend}$"
    (accuracy,) = re.findall(pattern, ended.stdout, flags=re.MULTILINE)
    assert float(accuracy) >= 97.0
