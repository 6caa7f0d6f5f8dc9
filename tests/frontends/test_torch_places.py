"""Gradients in memory that ranks share: where they are, and that no habit of a training loop is disturbed by it."""

from __future__ import annotations

import copy
import gc
import io
import os

import pytest
import torch
from torch import nn

import hvdlite.torch as hvd
from hvdlite.session import shared_arena
from hvdlite.torch.optimizer import places
from tests.frontends.scenarios import Report, Scenarios, assert_close
from tests.frontends.toys import assert_gradients, averaged_gradients, gradients_of, own_loss, sgd, two_layers

scenario = Scenarios(ranks=[2])


def is_shared(tensor: torch.Tensor) -> bool:
    return shared_arena().holds(tensor.data_ptr())


def addresses(model: nn.Module) -> list[int]:
    return [parameter.grad.data_ptr() for parameter in model.parameters()]


def allocated_bytes() -> int:
    return sum(end - begin for begin, end in shared_arena()._free.taken())


@scenario
def every_step_reduces_in_the_same_memory() -> None:
    for set_to_none in (True, False):
        model = two_layers()
        optimizer = sgd(model)
        places = None
        for _ in range(3):
            expected = averaged_gradients(model)
            own_loss(model).backward()
            assert all(is_shared(parameter.grad) for parameter in model.parameters())
            places = places or addresses(model)
            assert addresses(model) == places
            optimizer.synchronize()
            assert_gradients(model, expected)
            with optimizer.skip_synchronize():
                optimizer.step()
            assert addresses(model) == places
            optimizer.zero_grad(set_to_none=set_to_none)
            assert all((parameter.grad is None) == set_to_none for parameter in model.parameters())


@scenario
def a_gradient_that_was_transposed_where_it_lies_is_right_in_the_next_step() -> None:
    for set_to_none in (True, False):
        layer = nn.Linear(300, 300, bias=False)  # a place is written past the cache from 256 KiB on
        optimizer = sgd(layer)
        for _ in range(3):
            inputs = torch.arange(300.0).reshape(1, 300) * (1 + hvd.rank())
            layer(inputs).sum().backward()
            optimizer.synchronize()
            assert_close(layer.weight.grad, torch.arange(300.0).expand(300, 300) * 1.5)
            layer.weight.grad.t_()
            optimizer.zero_grad(set_to_none=set_to_none)


@scenario
def the_switch_leaves_them_where_autograd_made_them() -> None:
    model = two_layers()
    optimizer = sgd(model, gradients_in_shared_memory=False)
    expected = averaged_gradients(model)
    own_loss(model).backward()
    optimizer.synchronize()
    assert not any(is_shared(parameter.grad) for parameter in model.parameters())
    assert_gradients(model, expected)


@scenario
def results_have_the_same_bits_with_and_without() -> None:
    weights = []
    for is_on in (True, False):
        for options in ({}, {"compression": hvd.Compression.bf16}, {"op": hvd.Sum}, {"groups": 2}):
            model = two_layers()
            optimizer = sgd(model, gradients_in_shared_memory=is_on, **options)
            for _ in range(3):
                optimizer.zero_grad()
                own_loss(model).backward()
                optimizer.step()
            weights.append([parameter.detach().clone() for parameter in model.parameters()])
    half = len(weights) // 2
    for ours, theirs in zip(weights[:half], weights[half:], strict=True):
        assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


@scenario
def what_travels_compressed_or_laid_out_otherwise_travels_from_there() -> None:
    torch.manual_seed(1)
    layer = nn.Conv2d(4, 4, 4).to(memory_format=torch.channels_last)
    narrow = nn.Linear(2, 2)
    for module, compression in ((layer, hvd.Compression.none), (narrow, hvd.Compression.fp16)):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.1), compression=compression)
        inputs = torch.full((1, 4, 4, 4) if module is layer else (1, 2), 1.0 + hvd.rank())
        module(inputs).sum().backward()
        gradient = module.weight.grad
        assert not is_shared(gradient)
        optimizer.synchronize()
        assert all(is_shared(each.own_place._tensor) for each in optimizer._reducer._gradients.values())
        assert module.weight.grad is gradient
        assert gradient.stride() == module.weight.stride()
        assert_close(gradient, torch.full_like(gradient, 1.5), 1e-3)


@scenario
def gradients_that_autograd_expands_are_put_there() -> None:
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1))
    ((1 + hvd.rank()) * weight.sum()).backward()
    assert is_shared(weight.grad)
    optimizer.synchronize()
    assert weight.grad.tolist() == [[1.5] * 2] * 3


@scenario
def clipping_and_flattening_between_synchronize_and_step() -> None:
    model = two_layers()
    optimizer = sgd(model)
    expected = averaged_gradients(model)
    own_loss(model).backward()
    optimizer.synchronize()
    flat = nn.utils.parameters_to_vector(parameter.grad for parameter in model.parameters())
    assert_close(flat, torch.cat([gradient.flatten() for gradient in expected]), 1e-5)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    assert_close(norm, flat.norm(), 1e-5)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with optimizer.skip_synchronize():
        optimizer.step()
    for parameter, old, gradient in zip(model.parameters(), before, expected, strict=True):
        assert_close(parameter.detach(), old - 0.1 * gradient * 0.5 / norm, 1e-4)


@scenario
def a_scaler_unscales_them() -> None:
    model = two_layers()
    optimizer = sgd(model)
    expected = averaged_gradients(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(own_loss(model)).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    assert_gradients(model, expected)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()


@scenario
def passes_are_summed_and_reduced_there() -> None:
    model = two_layers()
    optimizer = sgd(model, backward_passes_per_step=2)
    for _ in range(2):
        expected = [2 * gradient for gradient in averaged_gradients(model)]
        own_loss(model).backward()
        own_loss(model).backward()
        assert all(is_shared(parameter.grad) for parameter in model.parameters())
        optimizer.synchronize()
        assert_gradients(model, expected)
        optimizer.zero_grad()


@scenario
def a_missing_gradient_gets_a_place_too() -> None:
    model = two_layers()
    optimizer = sgd(model)
    for used in (hvd.rank() == 0, True, hvd.rank() == 1):
        optimizer.zero_grad()
        expected = averaged_gradients(model)
        if used:
            own_loss(model).backward()
        optimizer.synchronize()
        assert all(is_shared(parameter.grad) for parameter in model.parameters())
        if hvd.allgather(torch.tensor([used])).all():
            assert_gradients(model, expected)


@scenario
def a_parameter_of_two_modules_and_a_retained_graph() -> None:
    model = two_layers()
    tied = nn.Linear(3, 4)
    tied.weight = model[0].weight
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    value = torch.full((1, 3), 1.0 + hvd.rank())
    loss = tied(value).sum() + model[0](value).sum()
    (twice,) = torch.autograd.grad(loss, [tied.weight], retain_graph=True)
    loss.backward()
    assert is_shared(tied.weight.grad)
    optimizer.synchronize()
    assert_close(tied.weight.grad, twice / (1 + hvd.rank()) * 1.5, 1e-5)


@scenario
def two_optimizers_of_parts_of_a_model() -> None:
    model = two_layers()
    optimizers = [hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1)) for layer in model]
    expected = averaged_gradients(model)
    own_loss(model).backward()
    assert len(set(addresses(model))) == 4
    for optimizer in optimizers:
        optimizer.synchronize()
    assert_gradients(model, expected)


@scenario
def copies_and_checkpoints_are_of_ordinary_memory_and_have_only_their_bytes() -> None:
    model = two_layers()
    model.register_buffer("big", torch.zeros(1))
    optimizer = sgd(model)
    own_loss(model).backward()
    optimizer.step()
    twin = copy.deepcopy(model)
    gradients = [copy.deepcopy(parameter.grad) for parameter in model.parameters()]
    assert not any(is_shared(tensor) for tensor in [*twin.parameters(), *gradients])
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        assert parameter.grad.untyped_storage().nbytes() == parameter.nbytes
        assert torch.equal(gradient, parameter.grad)
    for saved in (model, model.state_dict(), optimizer.state_dict(), gradients_of(model)):
        file = io.BytesIO()
        torch.save(saved, file)
        file.seek(0)
        torch.load(file, weights_only=False)
    before = gradients_of(model)
    loss = sum(parameter.square().sum() for parameter in twin.parameters())
    loss.backward()  # the twin has no hooks, and nothing of the first model's
    assert all(torch.equal(*pair) for pair in zip(before, gradients_of(model), strict=True))
    optimizer.zero_grad()


@scenario
def gradients_that_are_put_elsewhere_come_back() -> None:
    model = two_layers()
    optimizer = sgd(model)
    for change in (lambda grad: grad.clone(), lambda grad: grad.share_memory_(), lambda grad: torch.zeros_like(grad)):
        optimizer.zero_grad()
        own_loss(model).backward()
        optimizer.step()
        weight = model[0].weight
        weight.grad = change(weight.grad)
        weight.grad.zero_()
        model[0].bias.grad = model[1].weight.grad = model[1].bias.grad = None
        expected = averaged_gradients(model)
        own_loss(model).backward()
        assert all(is_shared(parameter.grad) for parameter in model.parameters())
        optimizer.synchronize()
        assert_gradients(model, expected)


@scenario
def memory_returns_with_the_optimizer_and_the_gradients() -> None:
    gc.collect()
    before = allocated_bytes()
    model = nn.Linear(512, 512)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(1, 512)).sum().backward()
    optimizer.step()
    assert allocated_bytes() >= before + 512 * 512 * 4
    del optimizer
    model.zero_grad()
    assert allocated_bytes() == before


@scenario
def a_forked_child_reads_them_and_writes_its_own() -> None:
    model = two_layers()
    optimizer = sgd(model)
    own_loss(model).backward()
    optimizer.step()
    before = gradients_of(model)
    child = os.fork()
    if child == 0:
        is_equal = all(torch.equal(*pair) for pair in zip(before, gradients_of(model), strict=True))
        for parameter in model.parameters():
            parameter.grad.fill_(7)
        os._exit(0 if is_equal else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert all(torch.equal(*pair) for pair in zip(before, gradients_of(model), strict=True))


@scenario
def bursts_gather_small_gradients_behind_the_first() -> None:
    layers = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(3)), nn.Linear(2, 1 << 20, bias=False))
    optimizer = sgd(layers)
    layers(torch.ones(1, 2)).sum().backward()
    flights = [each.bucket.flight for each in optimizer._reducer._gradients.values()]
    assert [flight is not None for flight in flights] == [False, False, False, True]
    with pytest.raises(AssertionError, match="while ranks are reducing"):
        optimizer.zero_grad()
    optimizer.step()


@scenario
def the_allocator_is_asked_to_keep_as_much_as_all_gradients_take() -> None:
    told: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "keep_freed", told.append)
        model = two_layers()
        sgd(model, gradients_in_shared_memory=False)
        assert not told
        sgd(model)
    assert max(told) == sum(parameter.nbytes for parameter in model.parameters())


@scenario
def a_new_session_has_new_places() -> None:
    model = two_layers()
    optimizer = sgd(model)
    own_loss(model).backward()
    optimizer.step()
    before = gradients_of(model)
    hvd.shutdown()
    assert all(torch.equal(*pair) for pair in zip(before, gradients_of(model), strict=True))
    hvd.init()
    del optimizer
    model.zero_grad(set_to_none=False)  # the gradients stay in the memory of the first session
    again = sgd(model)
    expected = averaged_gradients(model)
    own_loss(model).backward()
    assert all(is_shared(parameter.grad) for parameter in model.parameters())
    again.synchronize()
    assert_gradients(model, expected)


def test_torch_places(report: Report, name: str) -> None:
    assert report[name] == ""
