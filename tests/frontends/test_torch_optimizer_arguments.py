"""`DistributedOptimizer` in a job of one: its class, its arguments, and what it shares with the optimizer it wraps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import hvdlite.torch as hvd


@pytest.fixture(autouse=True)
def _session() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def backward(model: nn.Module) -> None:
    model(torch.ones(1, 3)).sum().backward()


def test_it_is_an_optimizer_of_the_users_class(model: nn.Module) -> None:
    bare = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(bare)
    assert isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__name__ == "SGD"
    assert optimizer.param_groups is bare.param_groups
    assert optimizer.defaults is bare.defaults
    backward(model)
    optimizer.step()
    assert optimizer.state is bare.state
    assert len(bare.state) == 4
    assert repr(optimizer) == repr(bare)


def test_a_checkpoint_moves_between_wrapped_and_bare(model: nn.Module) -> None:
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.5))
    backward(model)
    optimizer.step()
    bare = torch.optim.Adam(model.parameters())
    bare.load_state_dict(optimizer.state_dict())
    assert bare.param_groups[0]["lr"] == 0.5
    inner = torch.optim.Adam(model.parameters())
    again = hvd.DistributedOptimizer(inner)
    again.load_state_dict(bare.state_dict())
    assert str(again.state_dict()) == str(bare.state_dict())
    assert again.param_groups is inner.param_groups


def test_step_hooks_run_once(model: nn.Module) -> None:
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer.load_state_dict(optimizer.state_dict())
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    backward(model)
    optimizer.step()
    assert calls == ["before", "after"]


def test_one_rank_trains_like_the_bare_optimizer(model: nn.Module) -> None:
    unused = nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([*model.parameters(), *unused.parameters()], lr=0.1))
    backward(model)
    expected = [parameter.detach() - 0.1 * parameter.grad for parameter in model.parameters()]
    with pytest.raises(AssertionError, match="more than backward_passes_per_step = 1 times"):
        backward(model)
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    assert all(torch.allclose(*pair) for pair in zip(model.parameters(), expected, strict=True))
    assert unused.weight.grad is None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"backward_passes_per_step": 0}, "backward_passes_per_step must be positive, got 0"),
        ({"op": hvd.Adasum}, "op Adasum is not supported"),
        ({"op": 17}, "op 17 is not supported"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor needs op=hvd.Average"),
        ({"gradient_predivide_factor": 0.0}, "gradient_predivide_factor must be positive"),
        ({"named_parameters": [torch.ones(1)]}, "pairs of a name and a parameter"),
        ({"named_parameters": ["ab"]}, "pairs of a name and a parameter"),
        ({"named_parameters": [("a", torch.ones(1)), ("a", torch.ones(1))]}, "more than one parameter a"),
        ({"named_parameters": []}, r"leaves out .*noname.0.0 of shape \(4, 3\)"),
    ],
)
def test_arguments_that_cannot_be(model: nn.Module, options: dict[str, Any], complaint: str) -> None:
    bare = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=complaint):
        hvd.DistributedOptimizer(bare, **options)
    backward(model)  # and nothing was hooked
    backward(model)


def test_only_a_bare_optimizer_can_be_wrapped(model: nn.Module) -> None:
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="is a DistributedOptimizer already"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(ValueError, match=r"expected a torch.optim.Optimizer, got Sequential"):
        hvd.DistributedOptimizer(model)
    with pytest.raises(ValueError, match="must be positive, got -1"):
        optimizer.set_backward_passes_per_step(-1)


def test_it_needs_init(model: nn.Module) -> None:
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"call hvd.init\(\) first"):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))


def test_names_come_from_the_optimizer_or_from_places(model: nn.Module) -> None:
    for parameters, name in (
        (model.named_parameters(), "'gradient.1.bias'"),
        (model.parameters(), "'gradient.noname.0.3'"),
    ):
        bare = torch.optim.SGD(parameters, lr=0.1)
        optimizer = hvd.DistributedOptimizer(bare)
        backward(model)
        with pytest.raises(AssertionError, match=name):
            backward(model)
        del optimizer


def test_a_name_is_taken_once(model: nn.Module) -> None:
    groups = [{"params": layer.named_parameters()} for layer in model]
    with pytest.raises(ValueError, match=r"'gradient.weight' is the name of another parameter"):
        hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1))
    backward(model)  # and nothing stays hooked
    backward(model)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model[0].named_parameters(), lr=0.1))
    with pytest.raises(ValueError, match=r"'gradient.weight' is the name of another parameter"):
        optimizer.add_param_group({"params": model[1].named_parameters()})
