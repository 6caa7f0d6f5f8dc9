"""torch's own data parallelism: its scripts run under hvdrun, and what it reduces DistributedOptimizer refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import hvdlite.torch as hvd
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH
from tests.harness.patience import PATIENCE_S

SCRIPT = Path(__file__).with_name("ddp_script.py")
INTERFACE = {"GLOO_SOCKET_IFNAME": "lo"}  # this host's name need not lead to an address


def test_a_script_of_ddp_runs_under_hvdrun() -> None:
    hvdrun = [sys.executable, "-m", "hvdlite.launcher.cli", "-np", "2"]
    ended = subprocess.run(
        [*hvdrun, sys.executable, str(SCRIPT)],
        env={**os.environ, **INTERFACE, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    trained = dict(re.findall(r"trained (\d of 2): (.*)$", ended.stdout, flags=re.MULTILINE))
    assert sorted(trained) == ["0 of 2", "1 of 2"]
    assert len(set(trained.values())) == 1


def both(store: str) -> list[str]:
    """Returns the errors of DistributedOptimizer for a DDP module made before it, and for one made after it."""
    hvd.init()
    messages = []
    hvd.DistributedOptimizer(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1))  # there is no torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=hvd.rank(), world_size=hvd.size())
    for comes_later in (False, True):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        module = None if comes_later else nn.parallel.DistributedDataParallel(model)
        try:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            module = nn.parallel.DistributedDataParallel(model)
            module(torch.ones(3, 2)).sum().backward()
            optimizer.step()
        except ValueError as error:
            messages.append(str(error))
        del module
    other = nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(other.parameters(), lr=0.1))
    other(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    dist.destroy_process_group()
    hvd.shutdown()
    return messages


@pytest.mark.parametrize("ranks", [2])
def test_ddp_and_distributed_optimizer_refuse_each_other(ranks: int, tmp_path: Path) -> None:
    for outcome in process_ranks(ranks, both, str(tmp_path / "store"), server=TORCH, environ=INTERFACE):
        before, later = outcome.result()
        for message in (before, later):
            assert re.search(r"parameter '(weight|bias)' is in a DistributedDataParallel module", message)
            assert "Use only one of the two" in message
