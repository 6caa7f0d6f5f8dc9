"""`DistributedOptimizer` on two ranks: the gradients it reduces, when, and how it fails."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import hvdlite.torch as hvd
from hvdlite.torch.compression import Compressor
from tests.frontends.scenarios import Report, Scenarios, assert_close
from tests.frontends.toys import (
    assert_averages,
    assert_gradients,
    averaged_gradients,
    gradients_of,
    local_gradients,
    own_loss,
    sgd,
    summed_gradients,
    two_layers,
)

scenario = Scenarios(ranks=[2])


@scenario
def gradients_are_averaged_in_place() -> None:
    model = two_layers()
    optimizer = sgd(model)
    expected = averaged_gradients(model)
    own_loss(model).backward()
    before = [parameter.grad for parameter in model.parameters()]
    optimizer.synchronize()
    assert [parameter.grad for parameter in model.parameters()] == before
    assert_gradients(model, expected)


@scenario
def reductions_complete_before_backward_has_reached_the_first_layer() -> None:
    model = two_layers()
    optimizer = sgd(model)
    expected = summed_gradients(model)[-1] / 2
    _, first, _, last = optimizer._reducer._gradients.values()  # the biases of the first and the last layer
    seen = []

    def look(_module: nn.Module, _gradient: object) -> None:
        last.bucket.flight.finish(set())  # backward goes on only after this reduction, or never
        seen.append((first.bucket.flight, model[1].bias.grad.clone()))

    model[0].register_full_backward_pre_hook(look)
    own_loss(model).backward()
    ((flight_of_first_layer, gradient),) = seen
    assert flight_of_first_layer is None
    assert_close(gradient, expected, 1e-5)


@scenario
def op_and_predivide_factor() -> None:
    for options, share in (
        ({"op": hvd.Sum}, 1.0),
        ({"gradient_predivide_factor": 4.0}, 0.5),
        ({"op": hvd.Average, "gradient_predivide_factor": 0.25}, 0.5),
    ):
        model = two_layers()
        optimizer = sgd(model, **options)
        expected = [total * share for total in summed_gradients(model)]
        own_loss(model).backward()
        optimizer.synchronize()
        assert_gradients(model, expected)


@scenario
def what_was_compressed_first_is_restored_first_while_the_rest_is_on_its_way() -> None:
    compressed, restored = [], []

    class Recording(Compressor):
        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
            compressed.append(tensor.shape)
            return tensor.clone(), tensor.shape

        @staticmethod
        def decompress(tensor: torch.Tensor, context: object) -> torch.Tensor:
            restored.append(context)
            return tensor

    model = two_layers()
    optimizer = sgd(model, compression=Recording)
    own_loss(model).backward()
    optimizer.synchronize()
    assert restored == compressed
    assert compressed != [parameter.shape for parameter in model.parameters()]


@scenario
def a_step_that_was_interrupted_in_the_middle_can_be_taken_again() -> None:
    restored = []

    class Interrupted(Compressor):
        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
            return tensor.clone(), None

        @staticmethod
        def decompress(tensor: torch.Tensor, context: object) -> torch.Tensor:
            restored.append(tensor)
            if len(restored) == 2:
                raise KeyboardInterrupt
            return tensor

    model = two_layers()
    optimizer = sgd(model, compression=Interrupted)
    own_loss(model).backward()
    with pytest.raises(KeyboardInterrupt):
        optimizer.synchronize()
    optimizer.synchronize()
    optimizer.zero_grad()
    assert_averages(model, optimizer)


@scenario
def compression_sends_less_and_restores_the_dtype() -> None:
    class Quartering(Compressor):
        """Sends doubles a quarter as large."""

        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
            return tensor.double() / 4, tensor.dtype

        @staticmethod
        def decompress(tensor: torch.Tensor, context: object) -> torch.Tensor:
            return (tensor * 4).to(context)

    for compression, tolerance in ((hvd.Compression.fp16, 2e-3), (hvd.Compression.bf16, 2e-2), (Quartering, 1e-5)):
        model = two_layers()
        optimizer = sgd(model, compression=compression)
        expected = averaged_gradients(model)
        own_loss(model).backward()
        optimizer.synchronize()
        assert_gradients(model, expected, tolerance)
        is_exact = all(torch.equal(*pair) for pair in zip(gradients_of(model), expected, strict=True))
        assert is_exact == (compression is Quartering)


@scenario
def several_passes_are_summed_before_they_are_reduced() -> None:
    model = two_layers()
    optimizer = sgd(model, backward_passes_per_step=2)
    expected = summed_gradients(model)  # two passes on each of two ranks, averaged over the ranks
    own_loss(model).backward()
    assert not optimizer._reducer.is_reducing
    own_loss(model).backward()
    assert optimizer._reducer.is_reducing
    with pytest.raises(AssertionError, match="more than backward_passes_per_step = 2 times"):
        own_loss(model).backward()
    optimizer.load_state_dict(optimizer.state_dict())  # forgets this step
    hvd.barrier()

    model.zero_grad()
    optimizer.set_backward_passes_per_step(3)
    assert optimizer.backward_passes_per_step == 3
    own_loss(model).backward()
    own_loss(model).backward()
    optimizer.synchronize()  # the end of an epoch may come before the last pass
    assert_gradients(model, expected)


@scenario
def a_parameter_without_gradient_takes_part_with_zeros() -> None:
    model = two_layers()
    unused = nn.Linear(2, 2)
    parameters = [*model.parameters(), *unused.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1))
    expected = [gradient / 2 for gradient in local_gradients(model, 1)]
    if hvd.rank() == 1:
        own_loss(model).backward()
    optimizer.step()
    assert_gradients(model, expected)
    assert [parameter.grad for parameter in unused.parameters()] == [None, None]  # they have none on any rank


@scenario
def a_parameter_without_gradient_on_any_rank_is_left_alone() -> None:
    """As alone: weight decay does not move it, whatever ranks used in other steps, and in whichever bucket it is."""
    for options in ({}, {"groups": 1}, {"groups": 3}, {"compression": hvd.Compression.fp16}, {"op": hvd.Sum}):
        layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
        hvd.broadcast_parameters(layers.state_dict(), root_rank=0)
        bare = torch.optim.AdamW(layers.parameters(), lr=0.1, weight_decay=0.5)
        optimizer = hvd.DistributedOptimizer(bare, layers.named_parameters(), **options)
        # Which layers ranks 0 and 1 use in each step. Layer 3 is used by nobody, and the others in turns.
        for used in (({0}, {1}), ({0, 2}, {1}), ({0}, {0}), ({1}, set()), ({0}, {1})):
            optimizer.zero_grad()
            before = [layer.weight.detach().clone() for layer in layers]
            for index in used[hvd.rank()]:
                layers[index](torch.ones(1, 2)).sum().backward()
            optimizer.step()
            for index, layer in enumerate(layers):
                is_used = index in used[0] | used[1]
                assert (layer.weight.grad is not None) == is_used, (options, used, index)
                assert torch.equal(layer.weight, before[index]) != is_used, (options, used, index)
                everywhere = hvd.allgather(layer.weight.detach().unsqueeze(0))
                assert torch.equal(everywhere[0], everywhere[1])


@scenario
def a_step_that_failed_leaves_no_gradient_behind() -> None:
    unused, used = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    bare = torch.optim.AdamW([unused, used], lr=0.1, weight_decay=0.5)
    optimizer = hvd.DistributedOptimizer(bare, [("unused", unused), ("used", used)], groups=1)
    for makes_graph in (True, False):
        used.grad = torch.ones(2, requires_grad=makes_graph)
        if makes_graph:
            with pytest.raises(ValueError, match="it is part of a graph"):
                optimizer.step()
        else:
            optimizer.step()
        assert unused.grad is None
    assert unused.tolist() == [1.0, 1.0]


@scenario
def zeros_that_the_user_made_are_a_gradient() -> None:
    model = two_layers()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    own_loss(model).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    assert [gradient.abs().sum().item() for gradient in gradients_of(model)] == [0.0] * 4


@scenario
def parameters_may_be_frozen_unfrozen_and_added() -> None:
    model = two_layers()
    model[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model[0].parameters(), lr=0.1))
    optimizer.add_param_group({"params": model[1].parameters(), "lr": 0.2})
    own_loss(model).backward()
    optimizer.step()
    assert len(gradients_of(model)) == 2

    model[0].requires_grad_(True)
    for hooked in (2, 4):  # the first backward finds no hook on the unfrozen layer, the second does
        optimizer.zero_grad()
        expected = averaged_gradients(model)
        own_loss(model).backward()
        assert sum(each.passes_left == 0 for each in optimizer._reducer._gradients.values()) == hooked
        optimizer.synchronize()
        assert_gradients(model, expected)
    model[1].requires_grad_(False)
    optimizer.zero_grad()
    own_loss(model).backward()
    optimizer.step()
    assert len(gradients_of(model)) == 2


@scenario
def ranks_may_differ_in_memory_format() -> None:
    torch.manual_seed(7)
    layer = nn.Conv2d(4, 4, 4)
    if hvd.rank() == 0:
        layer.to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1))
    images = torch.randn(2, 4, 8, 8)
    expected = sum(torch.autograd.grad(layer(images[rank]).square().sum(), layer.weight)[0] for rank in range(2)) / 2
    layer(images[hvd.rank()]).square().sum().backward()
    assert layer.weight.grad.is_contiguous() == (hvd.rank() == 1)
    optimizer.synchronize()
    assert_close(layer.weight.grad, expected, 1e-4)


@scenario
def a_gradient_that_ranks_disagree_on_fails_alone() -> None:
    wide = nn.Parameter(torch.ones(3 + hvd.rank()))
    agreed = nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([wide, agreed], lr=0.1), [("wide", wide), ("agreed", agreed)])
    (wide.sum() + (1 + hvd.rank()) * agreed.sum()).backward()
    with pytest.raises(hvd.Mismatch, match=r"gradient.wide"):
        optimizer.step()
    assert agreed.grad.tolist() == [1.5] * 3
    assert not optimizer._reducer.is_reducing
    optimizer.zero_grad()


@scenario
def a_gradient_that_a_later_hook_changes_is_told() -> None:
    def double(weight: torch.Tensor) -> None:
        weight.grad.mul_(2)

    model = two_layers()
    optimizer = sgd(model)
    model[0].weight.register_post_accumulate_grad_hook(double)
    own_loss(model).backward()
    assert optimizer._reducer.is_reducing
    with pytest.raises(AssertionError, match=r"gradient.0.weight.*' was changed while ranks were reducing it"):
        optimizer.synchronize()
    assert not optimizer._reducer.is_reducing


@scenario
def a_gradient_that_could_not_be_sent_may_be_mended() -> None:
    class Finite(Compressor):
        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
            if not tensor.isfinite().all():
                raise ValueError("not finite")
            return tensor.clone(), None

        @staticmethod
        def decompress(tensor: torch.Tensor, context: object) -> torch.Tensor:
            return tensor

    for mend in (lambda weight: setattr(weight, "grad", torch.ones(2)), lambda weight: weight.grad.fill_(1)):
        weight = nn.Parameter(torch.ones(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), compression=Finite)
        with pytest.raises(ValueError, match="not finite"):
            (weight.sum() * float("inf")).backward()
        mend(weight)
        optimizer.step()
        assert weight.tolist() == [0.0, 0.0]


@scenario
def a_name_that_is_in_flight_already_may_be_that_of_an_optimizer_of_another_session() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("taken", weight)])
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="gradient.taken")
        with pytest.raises(ValueError, match=r"'gradient.taken' is already in flight") as refused:
            weight.sum().backward()
        optimizer.load_state_dict(optimizer.state_dict())  # forgets this step
    hvd.barrier()  # before it, rank 1 does not let the first of that name finish
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(torch.ones(2), name="gradient.taken")
    assert hvd.synchronize(handle).tolist() == [1.0, 1.0]
    assert hvd.rank() == 1 or "made before the last hvd.init()" in str(refused.value)


@scenario
def a_gradient_that_another_hook_takes_counts_as_zeros() -> None:
    def take(weight: torch.Tensor) -> None:
        weight.grad = None

    weight = nn.Parameter(torch.ones(2))
    if hvd.rank() == 1:
        weight.register_post_accumulate_grad_hook(take)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
    weight.sum().backward()
    optimizer.step()
    assert weight.tolist() == [0.5, 0.5]


@scenario
def what_was_ready_in_another_session_is_not_sent_in_this_one() -> None:
    model = two_layers()
    optimizer = sgd(model)
    if hvd.rank() == 0:
        own_loss(model).backward()
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    assert_averages(model, optimizer)


@scenario
def what_was_in_flight_in_another_session_does_not_keep_gradients_from_being_cleared() -> None:
    """Neither in the next session, nor before it."""
    model = two_layers()
    optimizer = sgd(model)
    for clears_between in (False, True):
        own_loss(model).backward()
        with pytest.raises(AssertionError, match=r"zero_grad\(\) was called while ranks are reducing"):
            optimizer.zero_grad()
        hvd.barrier()  # after it, no rank loses what it is about to submit
        hvd.shutdown()
        if clears_between:
            optimizer.zero_grad()
        hvd.init()
        optimizer.zero_grad()
        assert_averages(model, optimizer)
        optimizer.zero_grad()


@scenario
def a_group_is_submitted_with_its_last_gradient() -> None:
    layers = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(4)), nn.Linear(2, 1 << 20, bias=False))
    *small, large = layers.parameters()
    optimizer = sgd(layers, groups=[[large], small[:2], small[2:]])
    optimizer._reducer._burst_bytes = 1
    layers(torch.ones(1, 2)).sum().backward()
    assert all(bucket.flight is not None for bucket in optimizer._reducer._buckets)
    optimizer.step()


@scenario
def a_group_of_which_some_have_no_gradient_yet_is_not_reduced() -> None:
    model = two_layers()
    optimizer = sgd(model, groups=1)
    model[1](torch.ones(1, model[1].in_features)).sum().backward()
    assert not optimizer._reducer.is_reducing
    optimizer.zero_grad()
    assert_averages(model, optimizer)


@scenario
def a_gradient_that_has_a_graph_is_refused() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1))
    with warnings.catch_warnings(action="ignore"), pytest.raises(ValueError, match="create_graph=True"):
        weight.square().sum().backward(create_graph=True)
    weight.grad = None
    optimizer.step()


def test_torch_gradients(report: Report, name: str) -> None:
    assert report[name] == ""
