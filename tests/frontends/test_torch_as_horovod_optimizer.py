"""Horovod's optimizer, broadcasts of state and compression, one behaviour each, where hvdlite stands for it.

The names of the scenarios are the table of the behaviour that scripts, test suites and recipes rely on, and every row
is right here. What differs on purpose has its line in docs/horovod.md.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import hvdlite.torch as hvd
from tests.frontends.scenarios import AsHorovod, Report

scenario = AsHorovod(ranks=[2, 3])


def linear() -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(3, 2)


def wrapped(model: nn.Module, bare: torch.optim.Optimizer | None = None, **options: object) -> torch.optim.Optimizer:
    bare = bare or torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(bare, model.named_parameters(), **options)


# ---- the optimizer


@scenario
def the_optimizer_is_of_the_users_class() -> None:
    model = linear()
    optimizer = wrapped(model)
    assert type(optimizer).__name__ == "SGD"
    assert isinstance(optimizer, torch.optim.SGD)
    assert "horovod" in str(optimizer.__class__)  # Lightning asks so whether it has wrapped an optimizer already
    assert optimizer.state_dict().keys() == torch.optim.SGD(model.parameters(), lr=0.1).state_dict().keys()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)


@scenario
def parameter_names() -> None:
    model = linear()
    for options in ({}, {"op": hvd.Adasum}):
        optimizer = wrapped(model, **options)
        assert optimizer._parameter_names == {model.weight: "weight", model.bias: "bias"}
        part = hvd.DistributedOptimizer(torch.optim.SGD([model.bias], lr=0.1), model.named_parameters(), **options)
        assert part._parameter_names == {model.weight: "weight", model.bias: "bias"}
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)
        assert optimizer._parameter_names == {model.weight: "allreduce.noname.0.0", model.bias: "allreduce.noname.0.1"}
        more = linear()
        optimizer.add_param_group({"params": [more.bias]})
        assert optimizer._parameter_names[more.bias] == "allreduce.noname.1.0"


@scenario
def choices_are_attributes() -> None:
    optimizer = wrapped(linear(), gradient_predivide_factor=2.0, sparse_as_dense=True, backward_passes_per_step=3)
    assert (optimizer.op, optimizer.gradient_predivide_factor, optimizer.sparse_as_dense) == (hvd.Average, 2.0, True)
    assert (optimizer.process_set, optimizer.backward_passes_per_step) == (hvd.global_process_set, 3)
    assert wrapped(linear(), op=hvd.Adasum).op == hvd.Adasum


@scenario
def one_gradient_is_reduced_by_hand() -> None:
    total = sum(range(hvd.size()))
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        model = linear()
        optimizer = wrapped(model, gradient_predivide_factor=2.0, compression=compression)
        model.weight.grad = torch.full((2, 3), float(hvd.rank()))
        handle, context = optimizer._allreduce_grad_async(model.weight)
        empty, _ = optimizer._allreduce_grad_async(model.bias)
        reduced = compression.decompress(hvd.synchronize(handle), context)
        torch.testing.assert_close(reduced, torch.full((2, 3), total / hvd.size()))
        assert (reduced is model.weight.grad) == (compression is hvd.Compression.none)
        assert hvd.synchronize(empty).tolist() == [0, 0]
    with pytest.raises(ValueError, match="no parameter of this"):
        optimizer._allreduce_grad_async(linear().weight)
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(AssertionError, match="_allreduce_grad_async\\(\\) was called while ranks are reducing"):
        optimizer._allreduce_grad_async(model.weight)
    optimizer.step()


@scenario
def one_sparse_gradient_is_reduced_by_hand() -> None:
    for is_dense in (False, True):
        rows = nn.Embedding(3, 2, sparse=True)
        optimizer = wrapped(rows, op=hvd.Sum, sparse_as_dense=is_dense)
        rows.weight.grad = torch.eye(3, 2).to_sparse(1)
        handle, _ = optimizer._allreduce_grad_async(rows.weight)
        reduced = hvd.synchronize(handle) if is_dense else handle()
        assert reduced.is_sparse != is_dense
        assert torch.equal(reduced.to_dense(), hvd.size() * torch.eye(3, 2))


@scenario
def step_after_synchronize_warns_once_with_horovods_words() -> None:
    model = linear()
    optimizer = wrapped(model)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert len(caught) == 1
    assert "optimizer.step() called without optimizer.skip_synchronize()" in str(caught[0].message)
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.synchronize()
    with warnings.catch_warnings(action="error"), optimizer.skip_synchronize():
        optimizer.step()


@scenario
def a_sparse_gradient_is_sparse_again() -> None:
    for options in ({"sparse_as_dense": True}, {"sparse_as_dense": True, "groups": 1}, {}):
        embedding = nn.Embedding(5, 2, sparse=True)
        nn.init.zeros_(embedding.weight)
        optimizer = wrapped(embedding, torch.optim.SparseAdam(embedding.parameters(), lr=0.1), **options)
        for _ in range(2):  # the second backward adds to what the first one left
            embedding(torch.tensor([hvd.rank()])).sum().backward()
            optimizer.synchronize()
            assert embedding.weight.grad.is_sparse
        dense = embedding.weight.grad.to_dense()[:, 0]
        assert torch.allclose(dense, torch.tensor([2 / hvd.size()] * hvd.size() + [0.0] * (5 - hvd.size())))
        with optimizer.skip_synchronize():
            optimizer.step()


@scenario
def parameters_without_a_gradient_contribute_zeros() -> None:
    models = nn.ModuleList([linear(), linear()])
    optimizer = wrapped(models, op=hvd.Sum)
    models[hvd.rank() % 2].weight.sum().backward()
    optimizer.synchronize()
    users = [(hvd.size() + 1) // 2, hvd.size() // 2]
    assert [model.weight.grad[0, 0].item() for model in models] == users
    assert [model.bias.grad.tolist() for model in models] == [[0.0, 0.0]] * 2


@scenario
def misuse_of_the_optimizer_is_an_assertion_error() -> None:
    model = linear()
    optimizer = wrapped(model)
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(AssertionError):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(AssertionError, match="was changed while ranks were reducing it"):
        optimizer.synchronize()
    optimizer.zero_grad(set_to_none=True)
    with pytest.raises(AssertionError), wrapped(linear(), op=hvd.Adasum).skip_synchronize():
        pass


@scenario
def wrong_arguments_of_the_optimizer_are_value_errors() -> None:
    model, other = linear(), linear()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for options in (
        dict(named_parameters=other.named_parameters()),
        dict(named_parameters=[("same", model.weight), ("same", model.bias)]),
        dict(named_parameters=list(model.parameters())),
        dict(gradient_predivide_factor=2.0, op=hvd.Sum),
        dict(backward_passes_per_step=0),
        dict(groups=0),
        dict(groups=[[model.weight], [model.weight]]),
        dict(num_groups=-1),
    ):
        with pytest.raises(ValueError):
            hvd.DistributedOptimizer(sgd, **options)


@scenario
def a_rank_outside_the_set_steps_alone() -> None:
    members = hvd.add_process_set([0])
    model = linear()
    optimizer = wrapped(model, process_set=members)
    (model.weight.sum() * (1 + hvd.rank())).backward()
    optimizer.step()
    assert torch.allclose(linear().weight - model.weight, torch.tensor(0.1 * (1 + hvd.rank())))
    hvd.remove_process_set(members)


# ---- state and objects


@scenario
def gradients_after_broadcast_optimizer_state_are_zeros() -> None:
    for is_wrapped in (False, True):
        model = linear()
        model.bias.requires_grad_(False)
        before = model.weight.detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        if is_wrapped:
            optimizer = wrapped(model, optimizer)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert torch.equal(model.weight.grad, hvd.broadcast(torch.zeros_like(model.weight), root_rank=0))
        assert model.bias.grad is None
        assert torch.equal(model.weight, before)  # Horovod's step on zeros decays it
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        gradient = model.weight.grad.clone()
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert torch.equal(model.weight.grad, gradient)


@scenario
def sparse_gradients_after_broadcast_optimizer_state() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert embedding.weight.grad.is_sparse
    embedding(torch.tensor([1])).sum().backward()
    optimizer.step()
    for model in (None, embedding):
        hvd.broadcast_optimizer_state(torch.optim.SGD(embedding.parameters(), lr=0.1), 0, model)
        assert embedding.weight.grad.is_sparse == (model is not None)


@scenario
def lbfgs_and_generators_of_other_things_are_refused() -> None:
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(linear().parameters()), root_rank=0)
    with pytest.raises(ValueError, match="takes tensors"):
        hvd.broadcast_parameters({"a": [1.0]}, root_rank=0)


@scenario
def hyper_parameters_are_broadcast() -> None:
    optimizer = torch.optim.Adam(linear().parameters(), lr=0.1 * (1 + hvd.rank()), betas=(0.5, 0.9 - 0.1 * hvd.rank()))
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"]) == (0.2, (0.5, 0.9 - 0.1))


@scenario
def a_parameter_without_gradient_on_any_rank_gets_zeros() -> None:
    model = linear()
    optimizer = wrapped(model)
    model.weight.sum().backward()
    optimizer.synchronize()
    assert model.bias.grad.tolist() == [0, 0]


@scenario
def users_compress_in_their_own_way() -> None:
    class Halves(hvd.Compressor):
        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
            return (tensor / 2).half(), tensor.dtype

        @staticmethod
        def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
            return tensor.to(ctx) * 2

    tensor, context = hvd.Compression.fp16.compress(torch.ones(2))
    assert (tensor.dtype, hvd.Compression.fp16.decompress(tensor, context).dtype) == (torch.float16, torch.float32)
    assert hvd.allreduce(torch.ones(2), compression=Halves).tolist() == [1, 1]
    model = linear()
    optimizer = wrapped(model, compression=Halves)
    model.weight.sum().backward()
    optimizer.synchronize()
    assert model.weight.grad.unique().tolist() == [1]


def test_torch_as_horovod_optimizer(report: Report, name: str) -> None:
    assert report[name] == ""
