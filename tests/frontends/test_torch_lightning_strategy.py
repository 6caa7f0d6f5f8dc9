"""Lightning's strategy for Horovod, step by step: the closure of a step synchronizes, in one long skip_synchronize().

A step is ``optimizer.step(closure=...)``. The closure trains, clears gradients, runs backward, waits for all
optimizers, and clips; so the user's step finds gradients that are those of all ranks. The context is entered once,
before training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
import torch
from torch import nn

import hvdlite.torch as hvd
from tests.frontends.scenarios import Report, Scenarios, assert_close
from tests.frontends.toys import assert_lbfgs, loss_on, own_loss, two_layers

STEPS = 3
scenario = Scenarios(ranks=[1, 2, 3])


def sgd(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


class Strategy:
    """Stands for Lightning's strategy: its work around the user's model and optimizers."""

    def __init__(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], passes: int = 1) -> None:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        for optimizer in optimizers:
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        self.optimizers = [
            hvd.DistributedOptimizer(optimizer, list(named_in(model, optimizer)), backward_passes_per_step=passes)
            for optimizer in optimizers
        ]
        self._stack = ExitStack()
        for optimizer in self.optimizers:
            self._stack.enter_context(optimizer.skip_synchronize())

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.synchronize()

    def teardown(self) -> None:
        self._stack.close()
        hvd.join()


def named_in(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, nn.Parameter]]:
    parameters = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter in parameters)


def batch_loss(model: nn.Module, rank: int, batch: int) -> torch.Tensor:
    return loss_on(model, rank + 7 * batch)


def fit(passes: int, clip: float, steps_in_each_pass: bool = False) -> None:
    """Trains by the strategy, and in this process alone on the batches of all ranks; both end with the same weights.

    Lightning steps in each pass where the strategy says that it takes care of accumulation, as Horovod's does.
    """
    model, alone = two_layers(), two_layers()
    strategy = Strategy(model, [sgd(list(model.parameters()))], passes)
    (optimizer,) = strategy.optimizers
    losses = []

    def closure(batch: int) -> Callable[[], torch.Tensor]:
        def evaluate() -> torch.Tensor:
            loss = batch_loss(model, hvd.rank(), batch) / passes
            if batch % passes == 0:
                optimizer.zero_grad()
            strategy.backward(loss)
            return loss.detach()

        return evaluate

    def closure_of_step(batch: int) -> Callable[[], torch.Tensor]:
        def evaluate() -> torch.Tensor:
            loss = closure(batch)()
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            return loss

        return evaluate

    for batch in range(STEPS * passes):
        if (batch + 1) % passes and not steps_in_each_pass:
            closure(batch)()
        else:
            losses.append(optimizer.step(closure=closure_of_step(batch)))
    strategy.teardown()
    assert all(isinstance(loss, torch.Tensor) for loss in losses)

    bare = sgd(list(alone.parameters()))
    for step in range(STEPS):
        bare.zero_grad()
        for batch in range(step * passes, (step + 1) * passes):
            (sum(batch_loss(alone, rank, batch) for rank in range(hvd.size())) / hvd.size() / passes).backward()
            if steps_in_each_pass or (batch + 1) % passes == 0:
                nn.utils.clip_grad_norm_(alone.parameters(), clip)
                bare.step()
    for ours, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert_close(ours.detach(), expected.detach(), 1e-4)
    everywhere = hvd.allgather(torch.cat([each.detach().flatten() for each in model.parameters()]).unsqueeze(0))
    assert all(torch.equal(each, everywhere[0]) for each in everywhere)


@scenario
def a_step_with_a_closure_that_synchronizes() -> None:
    fit(passes=1, clip=1e9)


@scenario
def with_clipping() -> None:
    fit(passes=1, clip=0.5)


@scenario
def with_accumulation() -> None:
    fit(passes=3, clip=1e9)
    fit(passes=2, clip=0.5)
    fit(passes=2, clip=1e9, steps_in_each_pass=True)
    fit(passes=3, clip=0.5, steps_in_each_pass=True)


@scenario
def with_an_optimizer_that_calls_the_closure_several_times() -> None:
    assert_lbfgs(synchronizes=True)


@scenario
def two_optimizers_of_which_one_is_toggled_off() -> None:
    """As Lightning's toggle_optimizer does for a GAN: all optimizers are synchronized after every backward."""
    model, alone = two_layers(), two_layers()
    parts = [list(layer.parameters()) for layer in model]
    strategy = Strategy(model, [sgd(part) for part in parts])
    for step in range(STEPS):
        for index, optimizer in enumerate(strategy.optimizers):
            for parameter in parts[1 - index]:
                parameter.requires_grad_(False)

            def closure(optimizer: torch.optim.Optimizer = optimizer, batch: int = step) -> torch.Tensor:
                loss = batch_loss(model, hvd.rank(), batch)
                optimizer.zero_grad()
                strategy.backward(loss)
                return loss

            optimizer.step(closure=closure)
            for parameter in parts[1 - index]:
                parameter.requires_grad_(True)
    strategy.teardown()

    optimizers = [sgd(list(layer.parameters())) for layer in alone]
    for step in range(STEPS):
        for optimizer in optimizers:
            alone.zero_grad()
            (sum(batch_loss(alone, rank, step) for rank in range(hvd.size())) / hvd.size()).backward()
            optimizer.step()
    for ours, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert_close(ours.detach(), expected.detach(), 1e-4)


@scenario
def mixed_precision_calls_the_closure_itself() -> None:
    model = two_layers()
    strategy = Strategy(model, [sgd(list(model.parameters()))])
    (optimizer,) = strategy.optimizers
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        strategy.backward(scaler.scale(own_loss(model)))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    strategy.teardown()
    everywhere = hvd.allgather(model[0].weight.detach().unsqueeze(0))
    assert all(torch.equal(each, everywhere[0]) for each in everywhere)
    assert not torch.equal(everywhere[0], two_layers()[0].weight)


@scenario
def a_closure_that_forgets_to_synchronize_is_refused() -> None:
    model = two_layers()
    strategy = Strategy(model, [sgd(list(model.parameters()))])
    (optimizer,) = strategy.optimizers
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = own_loss(model)
        loss.backward()
        return loss

    with pytest.raises(AssertionError, match=r"the closure calls it after backward\(\)"):
        optimizer.step(closure)
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    optimizer.synchronize()
    optimizer.step()
    strategy.teardown()


@scenario
def contexts_may_be_nested() -> None:
    model = two_layers()
    strategy = Strategy(model, [sgd(list(model.parameters()))])
    (optimizer,) = strategy.optimizers
    for _ in range(2):
        strategy.backward(own_loss(model))
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
    strategy.teardown()


def test_lightning_strategy(report: Report, name: str) -> None:
    assert report[name] == ""
