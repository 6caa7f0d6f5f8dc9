"""Uneven data: a rank that has joined contributes zeros to the training steps of the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hvdlite.torch as hvd
from tests.frontends.scenarios import Report, Scenarios, assert_close
from tests.frontends.toys import loss_on, two_layers

scenario = Scenarios(ranks=[1, 2, 3])


def train_unevenly(tolerance: float = 1e-5, **options: Any) -> None:
    """Rank r has r + 1 batches. An average divides by all ranks, also when some have joined."""
    model, alone = two_layers(), two_layers()
    bare = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(bare, model.named_parameters(), **options)
    for _ in range(hvd.rank() + 1):
        optimizer.zero_grad()
        loss_on(model, hvd.rank()).backward()
        optimizer.step()
    assert hvd.join() == hvd.size() - 1
    hvd.broadcast_parameters(model.state_dict(), hvd.size() - 1)

    optimizer = torch.optim.SGD(alone.parameters(), lr=0.05)
    for step in range(hvd.size()):
        optimizer.zero_grad()
        (sum(loss_on(alone, rank) for rank in range(step, hvd.size())) / hvd.size()).backward()
        optimizer.step()
    for ours, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert_close(ours.detach(), expected.detach(), tolerance)


@scenario
def gradients_of_ranks_that_have_joined_are_zeros() -> None:
    train_unevenly()
    train_unevenly()  # and again after all have joined


@scenario
def in_groups_compressed_and_predivided() -> None:
    train_unevenly(groups=2)
    train_unevenly(groups=1, gradient_predivide_factor=2.0)
    train_unevenly(compression=hvd.Compression.fp16, tolerance=1e-2)


@scenario
def a_rank_that_has_joined_has_no_gradient() -> None:
    model = two_layers()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(3):
        optimizer.zero_grad()
        if step < 2 or hvd.rank() == 0:
            model[0](torch.ones(1, 3)).sum().backward()
            optimizer.step()
            assert model[0].weight.grad is not None
            assert model[1].weight.grad is None
    hvd.join()


@scenario
def sparse_gradients_need_all_ranks() -> None:
    if hvd.size() == 1:
        return
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=0.1))
    if hvd.rank() > 0:
        embedding(torch.tensor([1])).sum().backward()
        with pytest.raises(hvd.HorovodInternalError, match=r"gradient.*join.*sparse_as_dense=True"):
            optimizer.step()
    hvd.join()


def test_torch_join(report: Report, name: str) -> None:
    assert report[name] == ""
