"""The example of TensorFlow on real images, in ranks that are forked."""

from __future__ import annotations

import re

import pytest

from tests.harness.forkserver import TENSORFLOW
from tests.harness.programs import output_of
from tests.house.tree import ROOT


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_digits_example_reads_97_percent(ranks: int) -> None:
    program = ROOT / "examples/tensorflow_digits.py"
    output = output_of(ranks, program, "--target", "0.97", cwd=ROOT, server=TENSORFLOW)
    ends = re.findall(rf"final test accuracy (\d+\.\d+)% with {ranks} rank\(s\)$", output, flags=re.MULTILINE)
    assert len(ends) == 1
    assert float(ends[0]) >= 97.0
