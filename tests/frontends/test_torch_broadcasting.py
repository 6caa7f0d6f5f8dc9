"""Parameters, optimizer state and objects, made equal on all ranks."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hvdlite.torch as hvd
from hvdlite.torch.broadcasting import _State
from hvdlite.training import broadcasting
from tests.frontends.scenarios import Report, Scenarios

scenario = Scenarios(ranks=[1, 3])


def model_of(rank: int) -> nn.Module:
    torch.manual_seed(rank)
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(27, 2))


def last_rank() -> int:
    return hvd.size() - 1


def same(ours: Any, theirs: Any) -> bool:
    """True if two state dicts are equal to the last bit."""
    if isinstance(ours, torch.Tensor):
        return torch.equal(ours, theirs) and ours.dtype == theirs.dtype
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs)


@scenario
def parameters_in_every_form() -> None:
    forms: list[Callable[[nn.Module], Any]] = [
        lambda model: model.state_dict(),  # with the integer counter and the running averages
        lambda model: model.named_parameters(),
        lambda model: list(model.named_parameters()),
        lambda model: model.parameters(),
        lambda model: list(model.parameters()),
    ]
    for form in forms:
        model, expected = model_of(hvd.rank()), model_of(last_rank())
        before = list(model.parameters())
        hvd.broadcast_parameters(form(model), last_rank())
        assert same(model.state_dict(), expected.state_dict())
        assert all(ours is parameter for ours, parameter in zip(before, model.parameters(), strict=True))


@scenario
def parameters_that_are_not_contiguous_or_none() -> None:
    base = torch.full((3, 4), float(hvd.rank()))
    hvd.broadcast_parameters({"view": base.t()[1:3], "absent": None, "flag": torch.tensor(True)}, last_rank())
    assert base[:, 1:3].unique().tolist() == [last_rank()]
    assert base[:, 0].unique().tolist() == [hvd.rank()]


@scenario
def parameters_that_cannot_be_sent() -> None:
    with pytest.raises(ValueError, match="'param_groups' is a list"):
        hvd.broadcast_parameters(torch.optim.SGD(model_of(0).parameters(), lr=1.0).state_dict(), 0)
    with pytest.raises(ValueError, match=r"state_dict\(\) or parameters, got a Sequential"):
        hvd.broadcast_parameters(model_of(0), 0)
    with pytest.raises(ValueError, match=r"cannot broadcast 'parameter.sparse': tensor of layout"):
        hvd.broadcast_parameters([("dense", torch.ones(2)), ("sparse", torch.eye(2).to_sparse())], 0)
    with pytest.raises(ValueError, match="is not a rank of this job"):
        hvd.broadcast_parameters([torch.ones(1)], hvd.size())


def optimizers(model: nn.Module, rank: int) -> list[torch.optim.Optimizer]:
    """Optimizers whose hyper-parameters differ between ranks."""
    lr = 0.1 / (1 + rank)
    first, *rest = model.parameters()
    groups = [{"params": [first], "lr": lr / 2}, {"params": rest}]
    return [
        torch.optim.SGD(groups, lr=lr),
        torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=0.1),
        torch.optim.Adam(model.parameters(), lr=torch.tensor(lr), amsgrad=True),
        torch.optim.AdamW(groups, lr=lr, betas=(lr, 0.9)),
    ]


def take_a_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 2, 4, 4)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def check_state(stepping: set[int], is_wrapped: bool) -> None:
    """Ranks in ``stepping`` have state before; every rank must end with that of the last rank, and no step taken."""
    for index in range(4):
        model, reference = model_of(hvd.rank()), model_of(last_rank())
        optimizer, expected = (
            optimizers(model, hvd.rank())[index],
            optimizers(reference, last_rank())[index],
        )
        if hvd.rank() in stepping:
            take_a_step(model, optimizer)
        if last_rank() in stepping:
            take_a_step(reference, expected)
        if is_wrapped:
            optimizer = hvd.DistributedOptimizer(optimizer)
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        hvd.broadcast_optimizer_state(optimizer, last_rank())
        assert same(optimizer.state_dict(), expected.state_dict())
        assert same(dict(model.state_dict()), weights)
        hvd.broadcast_parameters(model.state_dict(), last_rank())
        take_a_step(model, optimizer)
        take_a_step(reference, expected)
        assert torch.allclose(model[0].weight, reference[0].weight, atol=1e-6)


@scenario
def state_of_a_root_that_has_trained() -> None:
    check_state({last_rank()}, is_wrapped=False)
    check_state({last_rank()}, is_wrapped=True)


@scenario
def state_of_a_root_that_is_new() -> None:
    check_state({0} - {last_rank()}, is_wrapped=False)
    check_state(set(range(hvd.size())), is_wrapped=True)


@scenario
def state_that_cannot_be_sent() -> None:
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model_of(0).parameters()), 0)


@scenario
def objects_from_every_root() -> None:
    for root in range(hvd.size()):
        own = {"rank": hvd.rank(), "tensor": torch.arange(3) + hvd.rank(), "text": "ø" * hvd.rank()}
        received = hvd.broadcast_object(own, root, name=f"object {root}")
        assert (received is own) == (root == hvd.rank())
        assert same(received, {"rank": root, "tensor": torch.arange(3) + root, "text": "ø" * root})
    assert hvd.broadcast_object("mine" if hvd.rank() == 0 else None) == "mine"


@scenario
def objects_of_all_ranks() -> None:
    everybody = hvd.allgather_object({"rank": hvd.rank(), "payload": b"x" * 1000 * hvd.rank()}, name="all")
    assert everybody == [{"rank": rank, "payload": b"x" * 1000 * rank} for rank in range(hvd.size())]
    assert hvd.allgather_object(None) == [None] * hvd.size()


@scenario
def an_object_that_cannot_be_pickled_fails_on_every_rank() -> None:
    unsendable = threading.Lock() if hvd.rank() == last_rank() else 1
    for call in (lambda: hvd.broadcast_object(unsendable, last_rank()), lambda: hvd.allgather_object(unsendable)):
        is_told = hvd.rank() != last_rank()
        with pytest.raises(hvd.HorovodInternalError if is_told else ValueError, match="pickle") as caught:
            call()
        assert not is_told or str(last_rank()) in str(caught.value)
    assert hvd.broadcast_object(hvd.rank(), 0) == 0


def test_torch_broadcasting(report: Report, name: str) -> None:
    assert report[name] == ""


def test_tensors_do_not_travel_inside_a_pickle() -> None:
    state = {"big": torch.ones(1000, 100), "nested": [{"step": torch.tensor(3.0)}], "lr": 0.1}
    tensors: list[torch.Tensor] = []
    data = broadcasting._dump(state, tensors, _State())
    assert len(data) < 500
    assert [math.prod(tensor.shape) for tensor in tensors] == [100_000, 1]
    received: list[torch.Tensor] = []
    loaded = broadcasting._load(data, received, _State())
    assert [tensor.shape for tensor in received] == [tensor.shape for tensor in tensors]
    assert loaded["big"] is received[0]
    assert loaded["nested"][0]["step"] is received[1]
