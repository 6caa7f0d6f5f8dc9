"""A small model whose loss differs between ranks, and what its gradients should be."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

import hvdlite.torch as hvd
from tests.frontends.scenarios import assert_close


def two_layers() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def sgd(model: nn.Module, **options: object) -> torch.optim.SGD:
    """A wrapped optimizer that knows the names of the model's parameters."""
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options)


def loss_on(model: nn.Module, rank: int) -> torch.Tensor:
    """A loss that differs between ranks and that any rank can compute for any other."""
    return (model(torch.full((1, 3), 1.0 + rank)) ** 2).sum()


def own_loss(model: nn.Module) -> torch.Tensor:
    return loss_on(model, hvd.rank())


def gradients_of(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def local_gradients(model: nn.Module, rank: int) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss_on(model, rank), list(model.parameters())))


def summed_gradients(model: nn.Module) -> list[torch.Tensor]:
    both = zip(*(local_gradients(model, rank) for rank in range(hvd.size())), strict=True)
    return [torch.stack(gradients).sum(dim=0) for gradients in both]


def averaged_gradients(model: nn.Module) -> list[torch.Tensor]:
    return [total / hvd.size() for total in summed_gradients(model)]


def assert_gradients(model: nn.Module, expected: list[torch.Tensor], tolerance: float = 1e-5) -> None:
    for actual, wanted in zip(gradients_of(model), expected, strict=True):
        assert_close(actual, wanted, tolerance)


def assert_averages(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Checks the gradients of a backward pass after ``optimizer`` reduced them: nothing of earlier steps is left."""
    expected = averaged_gradients(model)
    own_loss(model).backward()
    optimizer.synchronize()
    assert_gradients(model, expected)


def assert_lbfgs(synchronizes: bool) -> None:
    """A step whose closure is called several times, and may synchronize by itself, is that of one process."""
    model, alone = two_layers(), two_layers()
    bare = torch.optim.LBFGS(alone.parameters(), max_iter=4)
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), max_iter=4))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = own_loss(model)
        loss.backward()
        if synchronizes:
            optimizer.synchronize()
        return hvd.allreduce(loss.detach())

    def closure_alone() -> torch.Tensor:
        bare.zero_grad()
        loss = torch.stack([loss_on(alone, rank) for rank in range(hvd.size())]).mean()
        loss.backward()
        return loss

    with optimizer.skip_synchronize() if synchronizes else contextlib.nullcontext():
        optimizer.step(closure)
    bare.step(closure_alone)
    for ours, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert_close(ours.detach(), expected.detach(), 1e-4)
