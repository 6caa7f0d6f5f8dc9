"""The example that is told to stop: it saves, and goes on from there. hvdrun's part is in tests/launcher."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import hvdlite.torch as hvd
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH
from tests.harness.programs import output_of, run_as_main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/torch_preemption.py"


def told_to_stop(options: tuple[str, ...]) -> object:
    """Runs the example; rank 0 alone gets SIGTERM, just before its first step. Returns the exit code."""
    broadcast = hvd.broadcast_optimizer_state

    def broadcast_and_signal(*arguments: Any, **named: Any) -> None:
        broadcast(*arguments, **named)
        if hvd.rank() == 0:
            signal.raise_signal(signal.SIGTERM)

    hvd.broadcast_optimizer_state = broadcast_and_signal
    return run_as_main(str(EXAMPLE), options, str(ROOT))


def test_a_job_that_gets_sigterm_saves_and_goes_on_later(tmp_path: Path) -> None:
    checkpoint = tmp_path / "digits.pt"
    options = ("--checkpoint", str(checkpoint), "--epochs")
    told = process_ranks(2, told_to_stop, (*options, "100000"), server=TORCH)
    assert [outcome.result() for outcome in told] == [0, 0]
    assert "begins at step 0" in told[0].output
    (stopped,) = re.findall(r"stopped after step (\d+)", told[0].output)
    assert checkpoint.exists()
    shown = output_of(2, EXAMPLE, *options, "1", cwd=ROOT)
    assert f"begins at step {stopped}" in shown
    assert "final test accuracy" in shown
    assert not checkpoint.exists()
