"""`DistributedOptimizer` with op=Adasum combines the ranks' own steps, by the formula, at any number of ranks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import hvdlite.torch as hvd
from tests.frontends.scenarios import Report, Scenarios, assert_close
from tests.frontends.toys import loss_on, two_layers

scenario = Scenarios(ranks=[1, pytest.param(2, marks=pytest.mark.faults), 3, 4])


def combined(deltas: list[torch.Tensor]) -> torch.Tensor:
    """Adasum of pairs, and of pairs of these, and so on; the last of an odd number waits."""

    def both(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = (a * b).sum()
        return (1 - product / (2 * a.square().sum())) * a + (1 - product / (2 * b.square().sum())) * b

    while len(deltas) > 1:
        pairs = [both(*deltas[start : start + 2]) for start in range(0, len(deltas) - 1, 2)]
        deltas = pairs + deltas[2 * len(pairs) :]
    return deltas[0]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.05)


def step_alone(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, passes: int) -> None:
    optimizer.zero_grad()
    for _ in range(passes):
        loss_on(model, rank).backward()
    optimizer.step()


def compare(ranks: list[int], passes: int = 1, **options: Any) -> None:
    """Three steps against those of copies, one for each rank, whose deltas are combined here."""
    model = two_layers()
    optimizer = hvd.DistributedOptimizer(
        adam(model), model.named_parameters(), op=hvd.Adasum, backward_passes_per_step=passes, **options
    )
    assert optimizer.backward_passes_per_step == passes
    members = ranks if hvd.rank() in ranks else [hvd.rank()]
    copies = [copy.deepcopy(model) for _ in members]
    optimizers = [adam(copied) for copied in copies]
    for _ in range(3):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        step_alone(model, optimizer, hvd.rank(), passes)
        for rank, copied, own in zip(members, copies, optimizers, strict=True):
            step_alone(copied, own, rank, passes)
        for index, start in enumerate(before):
            expected = start + combined([list(copied.parameters())[index].detach() - start for copied in copies])
            assert_close(list(model.parameters())[index].detach(), expected, 1e-4)
            for copied in copies:
                list(copied.parameters())[index].data.copy_(expected)


@scenario
def steps_are_combined_by_the_formula() -> None:
    compare(list(range(hvd.size())))


@scenario
def several_passes_groups_and_compression() -> None:
    compare(list(range(hvd.size())), passes=2, groups=2)
    compare(list(range(hvd.size())), compression=hvd.Compression.none, groups=1)


@scenario
def in_a_process_set() -> None:
    if hvd.size() < 3:
        return
    members = hvd.add_process_set([0, 2])
    compare([0, 2], process_set=members)
    hvd.remove_process_set(members)


@scenario
def a_parameter_without_gradient_and_a_frozen_one() -> None:
    model, unused = two_layers(), nn.Linear(2, 2)
    model[0].bias.requires_grad_(False)
    hvd.broadcast_parameters(unused.state_dict(), 0)
    before = copy.deepcopy(unused.state_dict())
    frozen = model[0].bias.detach().clone()
    parameters = [*model.parameters(), *unused.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), op=hvd.Adasum)
    loss_on(model, hvd.rank()).backward()
    optimizer.step()
    assert torch.equal(frozen, model[0].bias)
    assert all(torch.equal(before[name], tensor) for name, tensor in unused.state_dict().items())
    optimizer.add_param_group({"params": nn.Linear(1, 1).parameters()})
    optimizer.step()


@scenario
def a_closure_is_evaluated_on_each_rank() -> None:
    model = two_layers()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_on(model, hvd.rank())
        loss.backward()
        return loss

    expected = loss_on(model, hvd.rank()).item()
    assert optimizer.step(closure).item() == expected
    everywhere = hvd.allgather(model[0].weight.detach().unsqueeze(0))
    assert all(torch.equal(each, everywhere[0]) for each in everywhere)


@scenario
def synchronize_does_nothing_and_cannot_be_skipped() -> None:
    model = two_layers()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum)
    loss_on(model, hvd.rank()).backward()
    own = model[0].weight.grad.clone()
    optimizer.synchronize()
    assert torch.equal(model[0].weight.grad, own)
    with pytest.raises(AssertionError, match="cannot be used with op=hvd.Adasum"), optimizer.skip_synchronize():
        pass
    optimizer.set_backward_passes_per_step(3)
    assert optimizer.backward_passes_per_step == 3
    with pytest.raises(ValueError, match="must be positive"):
        optimizer.set_backward_passes_per_step(0)


@scenario
def a_step_that_ranks_disagree_on_is_taken_back() -> None:
    if hvd.size() == 1:
        return
    wide, agreed = nn.Parameter(torch.ones(3 + hvd.rank())), nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([wide, agreed], lr=0.1), [("wide", wide), ("agreed", agreed)], op=hvd.Adasum
    )
    (wide.sum() + agreed.sum()).backward()
    with pytest.raises(hvd.Mismatch, match=r"delta.wide"):
        optimizer.step()
    assert wide.unique().tolist() == [1.0]
    assert_close(agreed.detach(), torch.full((3,), 0.9))  # all ranks agree on this step, so it is their average


@scenario
def what_adasum_cannot_have() -> None:
    model = two_layers()
    with pytest.raises(ValueError, match=r"gradient_predivide_factor needs op=hvd.Average"):
        hvd.DistributedOptimizer(adam(model), op=hvd.Adasum, gradient_predivide_factor=2.0)


def test_torch_adasum(report: Report, name: str) -> None:
    assert report[name] == ""
