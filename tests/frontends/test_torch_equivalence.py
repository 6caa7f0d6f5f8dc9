"""Wrapped training on N ranks is single-process training on the N batches put together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import nn

import hvdlite.torch as hvd
from tests.frontends.scenarios import Report, Scenarios, assert_close

STEPS = 60
BATCH = 4
OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, weight_decay=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
}
scenario = Scenarios(ranks=[1, 2, 3])


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    for inputs, targets in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


def compare(kind: str) -> None:
    torch.manual_seed(3)
    alone = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 2))
    inputs = torch.randn(STEPS, BATCH * hvd.size(), 6)
    targets = torch.randn(STEPS, BATCH * hvd.size(), 2)
    shared = copy.deepcopy(alone)
    first = copy.deepcopy(alone.state_dict())

    train(alone, OPTIMIZERS[kind](alone.parameters()), zip(inputs, targets, strict=True))
    own = slice(BATCH * hvd.rank(), BATCH * (hvd.rank() + 1))
    wrapped = hvd.DistributedOptimizer(OPTIMIZERS[kind](shared.parameters()), shared.named_parameters())
    train(shared, wrapped, zip(inputs[:, own], targets[:, own], strict=True))

    for name, expected in alone.state_dict().items():
        assert not torch.allclose(expected, first[name], atol=1e-2)
        assert_close(shared.state_dict()[name], expected, tolerance=2e-4)
        everywhere = hvd.allgather(shared.state_dict()[name].unsqueeze(0))
        assert all(torch.equal(copied, everywhere[0]) for copied in everywhere)


@scenario
def sgd_with_momentum() -> None:
    compare("sgd")


@scenario
def adam() -> None:
    compare("adam")


@scenario
def adamw() -> None:
    compare("adamw")


def test_training_equals_one_process(report: Report, name: str) -> None:
    assert report[name] == ""
