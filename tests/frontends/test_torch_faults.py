"""A rank that dies in the middle of training."""

from __future__ import annotations

import torch
from torch import nn

import hvdlite.torch as hvd
from tests.harness import ProcessRanks, pause_at
from tests.harness.forkserver import TORCH


def train_until_rank_1_dies() -> None:
    hvd.init()
    model = nn.Linear(8, 8)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(5):
        if step == 3 and hvd.rank() == 1:
            pause_at("middle of training")
        optimizer.zero_grad()
        model(torch.ones(1, 8)).sum().backward()
        try:
            optimizer.step()
        except hvd.PeerLost:
            optimizer.zero_grad()  # nothing is left in flight
            raise


def test_the_other_ranks_step_raises_peer_lost_in_time() -> None:
    with ProcessRanks(2, train_until_rank_1_dies, deadline_s=60.0, server=TORCH) as ranks:
        ranks.wait_for("middle of training", 1)
        killed_at = ranks.kill(1)
        survivor, _ = ranks.join()
    assert survivor.error == "PeerLost"
    assert survivor.details["rank"] == 1
    assert survivor.ended_at is not None
    assert survivor.ended_at - killed_at < 5.0
