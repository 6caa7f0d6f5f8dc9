"""hvdrun names the rank that failed first, although the others fail because of it and may be quicker to end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.launcher.hvdrun import run

_PROGRAM = """
import sys, time
import numpy as np
import hvdlite as hvd

hvd.init()
for step in range(1000):
    hvd.allreduce(np.ones(3), name="x")
    if step == 5 and hvd.rank() == {culprit}:
        {failure}
"""

FAILURES = {
    "exception": ("raise KeyError('a bug of mine')", 1, "a bug of mine"),
    "exit code": ("sys.exit(7)", 7, "ended with code 7"),
    "quick exit": ("import os; os._exit(9)", 9, "ended with code 9"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_the_culprit_is_named_and_not_a_victim(tmp_path: Path, failure: str, culprit: int) -> None:
    statement, code, hint = FAILURES[failure]
    script = tmp_path / "train.py"
    script.write_text(_PROGRAM.format(culprit=culprit, failure=statement))
    for _ in range(3):
        ended = run("-np", "3", sys.executable, str(script))
        assert ended.returncode == code, ended.stderr
        box = ended.stderr[ended.stderr.index("+-- hvdrun") :]
        assert f"rank {culprit} on" in box
        assert hint in box
