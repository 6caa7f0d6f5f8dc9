"""Users' code between backward and step of a `DistributedOptimizer`, on two ranks."""

from __future__ import annotations

import traceback
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hvdlite.torch as hvd
from hvdlite.tracebacks import shorten
from tests.frontends.scenarios import Report, Scenarios, assert_close
from tests.frontends.toys import (
    assert_averages,
    assert_gradients,
    assert_lbfgs,
    averaged_gradients,
    gradients_of,
    own_loss,
    sgd,
    summed_gradients,
    two_layers,
)

scenario = Scenarios(ranks=[2])


def assert_ends_here(error: BaseException) -> None:
    """An uncaught ``error`` is shown without hvdlite's frames, which it had."""
    assert traceback.extract_tb(error.__traceback__)[-1].filename != __file__
    shorten(error)
    assert traceback.extract_tb(error.__traceback__)[-1].filename == __file__


@scenario
def clipping_between_synchronize_and_step() -> None:
    model = two_layers()
    optimizer = sgd(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    own_loss(model).backward()
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    with optimizer.skip_synchronize():
        optimizer.step()
    with pytest.raises(AssertionError, match="call that first") as raised, optimizer.skip_synchronize():
        optimizer.step()
    assert_ends_here(raised.value)
    moved = torch.cat([(a - b).flatten() for a, b in zip(before, model.parameters(), strict=True)])
    assert_close(moved.norm(), torch.tensor(0.1 * 0.5), 1e-4)


@scenario
def clipping_without_synchronize_is_noticed() -> None:
    model = two_layers()
    optimizer = sgd(model)
    own_loss(model).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    told = r"'gradient.1.*' was changed while .* optimizer.synchronize\(\) first"
    with pytest.raises(AssertionError, match=told) as raised:
        optimizer.step()
    assert_ends_here(raised.value)
    optimizer.zero_grad()
    assert_averages(model, optimizer)


@scenario
def step_after_synchronize_warns_and_reduces_again() -> None:
    model = two_layers()
    optimizer = sgd(model, op=hvd.Sum)
    expected = [total * 2 for total in summed_gradients(model)]
    own_loss(model).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match=r"optimizer.step\(\) called without optimizer.skip_synchronize\(\)") as warned:
        optimizer.step()
    assert len(warned) == 1
    assert_gradients(model, expected)
    optimizer.zero_grad()
    own_loss(model).backward()
    with (
        optimizer.skip_synchronize(),
        pytest.raises(AssertionError, match=r"synchronize\(\) has reduced; call that first"),
    ):
        optimizer.step()
    optimizer.synchronize()


@scenario
def zero_grad_is_refused_while_gradients_are_reduced() -> None:
    model = two_layers()
    optimizer = sgd(model)
    own_loss(model).backward()
    with pytest.raises(AssertionError, match=r"zero_grad\(\) was called while ranks are reducing"):
        optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert [gradient.abs().sum().item() for gradient in gradients_of(model)] == [0.0] * 4
    optimizer.zero_grad()
    assert gradients_of(model) == []


@scenario
def a_closure_sees_reduced_gradients() -> None:
    model = two_layers()
    optimizer = sgd(model)
    expected = averaged_gradients(model)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = own_loss(model)
        loss.backward()
        return loss

    loss = own_loss(model).item()
    assert optimizer.step(closure).item() == loss
    assert_gradients(model, expected)


@scenario
def lbfgs_evaluates_reduced_gradients() -> None:
    assert_lbfgs(synchronizes=False)


@scenario
def two_optimizers_without_names_reduce_in_one_backward() -> None:
    models = [two_layers(), two_layers()]
    optimizers = [hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1)) for model in models]
    expected = averaged_gradients(models[0])
    sum(own_loss(model) for model in models).backward()
    for optimizer in optimizers:
        optimizer.step()
    for model in models:
        assert_gradients(model, expected)


@scenario
def ranks_may_step_two_optimizers_in_opposite_order() -> None:
    """Gradients that are complete do not wait for the step of their own optimizer."""
    models = [two_layers(), two_layers()]
    optimizers = [sgd(model) for model in models]
    expected = averaged_gradients(models[0])
    sum(own_loss(model) for model in models).backward()
    for optimizer in optimizers if hvd.rank() == 0 else reversed(optimizers):
        optimizer.step()
    for model in models:
        assert_gradients(model, expected)


@scenario
def schedulers_take_the_wrapped_and_the_bare_optimizer() -> None:
    for is_made_first in (False, True):
        model = two_layers()
        bare = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(bare, 1, gamma=0.5) if is_made_first else None
        optimizer = hvd.DistributedOptimizer(bare)
        schedule = schedule or torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        expected = averaged_gradients(model)
        own_loss(model).backward()
        with warnings.catch_warnings(action="ignore" if is_made_first else "error"):
            optimizer.step()
            schedule.step()
        assert_gradients(model, expected)
        assert optimizer.param_groups[0]["lr"] == 0.5


@scenario
def a_gradient_scaler_without_synchronize_is_an_error_and_not_a_race() -> None:
    for use in (lambda scaler, optimizer: scaler.unscale_(optimizer), lambda scaler, optimizer: scaler.step(optimizer)):
        model = two_layers()
        optimizer = sgd(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(own_loss(model)).backward()
        assert optimizer.param_groups[0]["lr"] == 0.1  # anybody else may read it meanwhile
        torch.amp.GradScaler("cpu", enabled=False).unscale_(optimizer)  # which does nothing
        if hvd.size() == 1:
            use(scaler, optimizer)
            continue
        with pytest.raises(AssertionError, match="call optimizer.synchronize\\(\\) before scaler.unscale_"):
            use(scaler, optimizer)
        optimizer.synchronize()


@scenario
def an_overflow_on_one_rank_makes_the_gradient_scaler_skip_the_step_on_all() -> None:
    model = two_layers()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    expected = averaged_gradients(model)
    for has_overflow in (False, True):
        optimizer.zero_grad()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        factor = float("inf") if has_overflow and hvd.rank() == 1 else 1.0
        scaler.scale(own_loss(model) * factor).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        if not has_overflow:
            assert_gradients(model, expected)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        stayed = [torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True)]
        assert stayed == [has_overflow] * 4
    assert scaler.get_scale() == 4.0


@scenario
def a_backward_through_another_optimizers_model() -> None:
    """As in a GAN: the generator's loss leaves gradients in the discriminator, whose optimizer does not step."""
    generator, discriminator = nn.Linear(2, 3), nn.Linear(3, 1)
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), list(model.named_parameters(name)))
        for name, model in (("generator", generator), ("discriminator", discriminator))
    ]
    discriminator(generator(torch.ones(1, 2))).sum().backward()
    optimizers[0].step()
    told = r"zero_grad\(\) was called while ranks are reducing .*backward\(inputs=.*requires_grad_\(False\)"
    with pytest.raises(AssertionError, match=told):
        optimizers[1].zero_grad()
    with pytest.raises(AssertionError, match="'gradient.discriminator.* more than .* another optimizer's"):
        discriminator(generator(torch.ones(1, 2)).detach()).sum().backward()
    with pytest.raises(AssertionError, match="'gradient.discriminator.* was changed while ranks were reducing it"):
        optimizers[1].synchronize()
    optimizers[1].zero_grad()
    discriminator(generator(torch.ones(1, 2))).sum().backward(inputs=list(generator.parameters()))
    optimizers[0].step()
    optimizers[1].zero_grad()


@scenario
def clearing_gradients_that_another_optimizer_reduces() -> None:
    for set_to_none in (True, False):
        model = two_layers()
        optimizer = sgd(model)
        other = torch.optim.SGD(model.parameters(), lr=0.1)
        for clear in (model.zero_grad, other.zero_grad):
            own_loss(model).backward()
            clear(set_to_none=set_to_none)
            with pytest.raises(AssertionError, match="'gradient.* was changed while ranks were reducing it"):
                optimizer.step()
            optimizer.zero_grad()
        assert_averages(model, optimizer)


@scenario
def a_shared_layer_under_checkpointing() -> None:
    for use_reentrant in (True, False):
        first, shared = nn.Linear(3, 3), nn.Linear(3, 3)
        model = nn.ModuleList([first, shared])
        optimizer = sgd(model)
        outputs = first(torch.ones(1, 3))
        for _ in range(2):
            outputs = checkpoint(shared, outputs, use_reentrant=use_reentrant)
        if use_reentrant:
            with pytest.raises(AssertionError, match=r"'gradient.1\..* more than backward_passes_per_step = 1 times"):
                outputs.sum().backward()
            with pytest.raises(AssertionError, match="was changed while ranks were reducing it"):
                optimizer.synchronize()
        else:
            outputs.sum().backward()
            optimizer.step()


@scenario
def another_optimizer_takes_over_when_the_first_is_gone() -> None:
    model = two_layers()
    optimizer = sgd(model)
    expected = averaged_gradients(model)
    own_loss(model).backward()
    optimizer.synchronize()
    del optimizer
    model.zero_grad()
    optimizer = sgd(model)
    own_loss(model).backward()
    optimizer.synchronize()
    assert_gradients(model, expected)


def test_torch_recipes(report: Report, name: str) -> None:
    assert report[name] == ""
