"""`DistributedOptimizer` in a job of one: its class, its arguments, and what it shares with the optimizer it wraps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
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
        ({"op": 17}, "op 17 is not supported"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor needs op=hvd.Average"),
        ({"gradient_predivide_factor": 0.0}, "gradient_predivide_factor must be positive"),
        ({"named_parameters": [torch.ones(1)]}, "pairs of a name and a parameter"),
        ({"named_parameters": ["ab"]}, "pairs of a name and a parameter"),
        ({"named_parameters": nn.Linear(4, 3)}, r"named_parameters is a model; .*: model.named_parameters\(\)"),
        ({"named_parameters": nn.Sequential(nn.Linear(4, 3))}, "named_parameters is a model"),
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


@pytest.mark.parametrize(
    ("groups", "complaint"),
    [
        (lambda model: 0, "groups must be a positive number or lists of parameters, got 0"),
        (lambda model: True, "groups must be a positive number or lists of parameters, got True"),
        (lambda model: 1.5, "groups must be a positive number or lists of parameters, got 1.5"),
        (lambda model: [model[0].weight], "groups must be a positive number or lists of parameters, got a list"),
        (lambda model: [["0.weight"]], "groups must be lists of parameters, but one has '0.weight'"),
        (lambda model: [[nn.Parameter(torch.ones(5))]], r"shape \(5,\) that the optimizer does not have"),
        (lambda model: [[model[0].weight], [model[0].weight]], "parameter '0.weight' more than once"),
    ],
)
def test_groups_that_cannot_be(model: nn.Module, groups: Callable[[nn.Module], Any], complaint: str) -> None:
    bare = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=complaint):
        hvd.DistributedOptimizer(bare, model.named_parameters(), groups=groups(model))


def test_num_groups_is_the_former_name_of_groups(model: nn.Module) -> None:
    bare = torch.optim.SGD(model.parameters(), lr=0.1)
    for options, complaint in (
        ({"num_groups": -1}, "num_groups must be a non-negative integer, got -1"),
        ({"num_groups": "2"}, "num_groups must be a non-negative integer, got '2'"),
        ({"num_groups": 2, "groups": 2}, "either groups or num_groups, not both"),
    ):
        with warnings.catch_warnings(action="ignore"), pytest.raises(ValueError, match=complaint):
            hvd.DistributedOptimizer(bare, **options)
    with pytest.warns(DeprecationWarning, match="pass groups instead") as caught:
        optimizer = hvd.DistributedOptimizer(bare, num_groups=3)
    assert caught[0].filename == __file__
    assert [len(bucket.gradients) for bucket in optimizer._reducer._buckets] == [1, 1, 2]


def test_a_process_set_must_be_registered(model: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"is not registered; pass it to hvd.init\(\) or hvd.add_process_set\(\)"):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), process_set=hvd.ProcessSet([0]))


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


def test_parameters_of_one_name_are_told_apart(model: nn.Module) -> None:
    groups = [{"params": layer.named_parameters()} for layer in model]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1))
    other = hvd.DistributedOptimizer(torch.optim.SGD(nn.Linear(1, 1).named_parameters(), lr=0.1))
    names = [*optimizer._reducer._gradients, *other._reducer._gradients]
    assert len(set(names)) == 6
    assert [name for name in names if name.startswith("gradient.weight")] == [
        "gradient.weight",
        "gradient.weight#2",
        "gradient.weight#3",
    ]
