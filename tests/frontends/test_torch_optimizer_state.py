"""`broadcast_optimizer_state` for every optimizer of torch, after steps that were different on each rank."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import hvdlite.torch as hvd
from tests.frontends.scenarios import Report, Scenarios, seeded

OPTIMIZERS = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
scenario = Scenarios(ranks=[1, 3])


def model_of(name: str) -> nn.Module:
    """SparseAdam takes sparse gradients and Muon matrices only."""
    torch.manual_seed(2)
    if name == "SparseAdam":
        return nn.Embedding(6, 3, sparse=True)
    return nn.Linear(6, 3, bias=name != "Muon")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int) -> None:
    generator = seeded(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        is_embedding = isinstance(model, nn.Embedding)
        inputs = torch.randint(6, (4,), generator=generator) if is_embedding else torch.rand(4, 6, generator=generator)
        model(inputs).square().sum().backward()
        optimizer.step()


def check(name: str, process_set: hvd.ProcessSet = hvd.global_process_set) -> None:
    root = process_set.ranks[-1]
    model = model_of(name)
    optimizer = OPTIMIZERS[name](model.parameters(), lr=0.01 * (1 + hvd.rank()))
    train(model, optimizer, steps=1 + hvd.rank(), seed=hvd.rank())
    if process_set.included():
        hvd.broadcast_parameters(model.state_dict(), root, process_set=process_set)
        hvd.broadcast_optimizer_state(optimizer, root, process_set=process_set)
        train(model, optimizer, steps=2, seed=7)
    with torch._tensor_str.printoptions(precision=17):
        mine = str([optimizer.state_dict(), *model.parameters()])
    assert (mine == hvd.broadcast_object(mine, root)) == process_set.included()


@scenario
def every_optimizer_of_torch() -> None:
    for name in OPTIMIZERS:
        if name != "LBFGS":
            try:
                check(name)
            except Exception as error:
                error.add_note(f"with {name}")
                raise


@scenario
def in_a_process_set() -> None:
    if hvd.size() > 2:
        members = hvd.add_process_set([0, 1])
        check("Adam", members)
        own = hvd.broadcast_object(hvd.rank(), 1, process_set=members) if members.included() else None
        assert own == (1 if members.included() else None)
        if members.included():
            assert hvd.allgather_object(hvd.rank(), process_set=members) == [0, 1]
        else:
            with pytest.raises(ValueError, match="rank 2 is not in process set"):
                hvd.allgather_object(hvd.rank(), process_set=members)
        hvd.remove_process_set(members)


def test_torch_optimizer_state(report: Report, name: str) -> None:
    assert report[name] == ""
