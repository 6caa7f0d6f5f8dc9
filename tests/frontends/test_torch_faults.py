"""A rank that dies in the middle of training."""

from __future__ import annotations

import torch
from torch import nn

import hvdlite.torch as hvd
from tests.harness import ProcessRanks, pause_at, reached
from tests.harness.forkserver import TORCH
from tests.harness.patience import NEVER_SILENT


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


def test_the_other_ranks_step_raises_peer_lost() -> None:
    with ProcessRanks(2, train_until_rank_1_dies, environ=NEVER_SILENT, server=TORCH) as ranks:
        ranks.wait_for("middle of training", 1)
        ranks.kill(1)
        survivor, _ = ranks.join()
    assert survivor.error == "PeerLost"
    assert survivor.details["rank"] == 1


def go_on_alone_when_rank_1_has_died() -> tuple[bool, list[float]]:
    hvd.init()
    model = nn.Linear(1024, 1024, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-9), model.named_parameters())
    inputs = torch.ones(1, 1024)
    is_lost = False
    for step in range(1_000_000):
        if step == 3:
            reached("middle of training")
        try:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
        except hvd.PeerLost:
            is_lost = True
            break
    optimizer.zero_grad(set_to_none=False)  # gradients stay where rank 1 could write
    del optimizer
    bare = torch.optim.SGD(model.parameters(), lr=1.0)
    nn.init.zeros_(model.weight)
    model(inputs).sum().backward()
    bare.step()
    return is_lost, model.weight.unique().tolist()


def test_a_rank_that_has_lost_another_goes_on_with_its_gradients() -> None:
    with ProcessRanks(2, go_on_alone_when_rank_1_has_died, server=TORCH) as ranks:
        ranks.wait_for("middle of training", 1)
        ranks.kill(1)
        survivor, _ = ranks.join()
    assert survivor.result() == (True, [-1.0])
