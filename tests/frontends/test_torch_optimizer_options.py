"""Training with each option of `DistributedOptimizer` is training in one process on all batches put together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import hvdlite.torch as hvd
from tests.frontends.scenarios import Report, Scenarios, assert_close, seeded

STEPS = 10
BATCH = 4
WORDS = 12
scenario = Scenarios(ranks=[1, 2, 3, pytest.param(4, marks=pytest.mark.faults)])
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3)


def embedding_model(is_sparse: bool = False) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Embedding(WORDS, 4, sparse=is_sparse), nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 2)
    )


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    passes: int = 1,
) -> None:
    for words, targets in batches:
        optimizer.zero_grad()
        for part, wanted in zip(words.chunk(passes), targets.chunk(passes), strict=True):
            (nn.functional.mse_loss(model(part), wanted) / passes).backward()
        optimizer.step()


def compare(
    ranks: Sequence[int] | None = None,
    is_sparse: bool = False,
    passes: int = 1,
    optimizer: Optimizer = sgd,
    tolerance: float = 1e-4,
    **options: Any,
) -> None:
    """Trains on ``ranks``, by default all, and on one process with their batches."""
    members = range(hvd.size()) if ranks is None else ranks
    generator = seeded(4)
    words = torch.randint(0, WORDS, (STEPS, hvd.size(), BATCH, 3), generator=generator)
    targets = torch.randn(STEPS, hvd.size(), BATCH, 2, generator=generator)
    alone, shared = embedding_model(), embedding_model(is_sparse)
    first = copy.deepcopy(alone.state_dict())

    own = [hvd.rank()] if hvd.rank() not in members else list(members)
    together = zip(words[:, own].flatten(1, 2), targets[:, own].flatten(1, 2), strict=True)
    train(alone, optimizer(alone.parameters()), together)
    if callable(options.get("groups")):
        options["groups"] = options["groups"](shared)
    wrapped = hvd.DistributedOptimizer(
        optimizer(shared.parameters()), shared.named_parameters(), backward_passes_per_step=passes, **options
    )
    train(shared, wrapped, zip(words[:, hvd.rank()], targets[:, hvd.rank()], strict=True), passes)

    for name, expected in alone.state_dict().items():
        assert not torch.allclose(expected, first[name], atol=1e-2)
        assert_close(shared.state_dict()[name], expected, tolerance)
    if ranks is None:
        weights = torch.cat([parameter.detach().flatten() for parameter in shared.parameters()])
        everywhere = hvd.allgather(weights.unsqueeze(0))
        assert all(torch.equal(copied, everywhere[0]) for copied in everywhere)


@scenario
def other_optimizers() -> None:
    compare(optimizer=lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=1e-3))
    compare(optimizer=lambda weights: torch.optim.Adam(weights, lr=0.01, weight_decay=1e-3), tolerance=2e-4)
    compare(optimizer=lambda weights: torch.optim.AdamW(weights, lr=0.01, amsgrad=True), tolerance=2e-4)


@scenario
def groups_by_number() -> None:
    for number in (1, 2, 100):
        compare(groups=number)


@scenario
def groups_by_lists() -> None:
    compare(groups=lambda model: [[model[4].bias, model[0].weight], [model[2].weight]])
    compare(groups=lambda model: [list(model[2].parameters()), []])


@scenario
def num_groups_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="pass groups instead"):
        compare(num_groups=3)


@scenario
def predivision() -> None:
    compare(gradient_predivide_factor=4.0)
    compare(gradient_predivide_factor=0.5, groups=2)


@scenario
def several_passes() -> None:
    compare(passes=2)
    compare(passes=4, groups=2)


@scenario
def compression() -> None:
    compare(compression=hvd.Compression.none)
    compare(compression=hvd.Compression.fp16, tolerance=2e-2)
    compare(compression=hvd.Compression.bf16, groups=3, tolerance=1e-1)


@scenario
def sparse_gradients() -> None:
    compare(is_sparse=True)
    compare(is_sparse=True, passes=2, gradient_predivide_factor=2.0)
    compare(is_sparse=True, compression=hvd.Compression.fp16, tolerance=2e-2)


@scenario
def sparse_gradients_as_dense_ones() -> None:
    compare(is_sparse=True, sparse_as_dense=True)
    compare(is_sparse=True, sparse_as_dense=True, groups=2)


@scenario
def sparse_gradients_in_groups() -> None:
    compare(is_sparse=True, groups=2)


@scenario
def process_sets() -> None:
    last = hvd.size() - 1
    if last == 0:
        compare(process_set=hvd.global_process_set)
        return
    members = hvd.add_process_set([last] if last == 1 else [0, last])
    for options in ({}, {"groups": 2}, {"is_sparse": True}, {"passes": 2}):
        compare(members.ranks, process_set=members, **options)
    hvd.remove_process_set(members)
    with pytest.raises(ValueError, match="is not registered"):
        compare(process_set=members)


def test_training_equals_one_process(report: Report, name: str) -> None:
    assert report[name] == ""
