"""The example that is told to stop: it saves, and goes on from there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.harness.patience import PATIENCE_S
from tests.harness.programs import output_of

ROOT = Path(__file__).resolve().parents[2]
_VARIABLES = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_a_job_that_gets_sigterm_saves_and_goes_on_later(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "digits.pt")
    command = [sys.executable, "-m", "hvdlite.launcher.cli", "-np", "2", "--stdin", "none"]
    command += [sys.executable, "examples/torch_preemption.py", "--checkpoint", checkpoint]
    with subprocess.Popen(
        [*command, "--epochs", "100000"], cwd=ROOT, env=_VARIABLES, stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        assert "begins at step 0" in job.stdout.readline()
        job.send_signal(signal.SIGTERM)
        told, _ = job.communicate(timeout=PATIENCE_S)
    (stopped,) = re.findall(r"stopped after step (\d+)", told)
    options = ("--checkpoint", checkpoint, "--epochs", "1")
    shown = output_of(2, ROOT / "examples/torch_preemption.py", *options, cwd=ROOT)
    assert f"begins at step {stopped}" in shown
    assert "final test accuracy" in shown
    assert not Path(checkpoint).exists()
