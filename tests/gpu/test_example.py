"""The example for GPUs, on the fakes; tests/frontends/test_torch_example.py has it on CPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.gpu.torch_fake.ranks import with_gpus
from tests.harness import process_ranks
from tests.harness.forkserver import ForkServer
from tests.harness.programs import run_as_main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/torch_gpu.py"


def _on_gpus(*options: str) -> object:
    with_gpus()
    return run_as_main(str(EXAMPLE), options, str(ROOT))


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_on_gpus(ranks: int, torch_ranks: ForkServer) -> None:
    outcomes = process_ranks(ranks, _on_gpus, "--epochs", "1", "--target", "0.5", server=torch_ranks)
    assert [outcome.result() for outcome in outcomes] == [0] * ranks
    assert re.search(
        rf"final test accuracy \d+\.\d+% with {ranks} rank\(s\) on cuda$", outcomes[0].output, re.MULTILINE
    )
