"""`SyncBatchNorm` on N ranks is `BatchNorm` on their batches put together: results, gradients, running averages."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import hvdlite.torch as hvd
from tests.frontends.scenarios import Report, Scenarios, assert_close, seeded

FEATURES = 3
TORCH_LAYERS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
scenario = Scenarios(ranks=[1, 2, 4])


def batch(rank: int, rows: int, dimensions: int, dtype: torch.dtype) -> torch.Tensor:
    shape = (rows, FEATURES, *range(2, dimensions))
    return (torch.randn(shape, generator=seeded(rank)) * 2 + 5 + rank % 10).to(dtype)


def layers(dimensions: int, dtype: torch.dtype, process_set: hvd.ProcessSet, **options: Any) -> tuple[Any, Any]:
    """Torch's layer in double precision and ours, with the same weights, which are not ones and zeros."""
    whole = TORCH_LAYERS[dimensions](FEATURES, **options)
    for index, parameter in enumerate(whole.parameters()):
        nn.init.uniform_(parameter, 0.5 + index, 1.5 + index, generator=seeded(index))
    own = hvd.SyncBatchNorm(FEATURES, process_set=process_set, **options)
    own.load_state_dict(whole.state_dict())
    return whole.double(), own.to(dtype)


def compare(
    dimensions: int = 4,
    rows: list[int] | None = None,
    dtype: torch.dtype = torch.float64,
    parameters_dtype: torch.dtype | None = None,
    tolerance: float = 1e-9,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    memory_format: torch.memory_format = torch.contiguous_format,
    **options: Any,
) -> None:
    """Three steps of training and one of evaluation; ``rows`` are the sizes of the ranks' batches."""
    ranks = process_set.ranks if process_set.included() else [hvd.rank()]
    rows = rows or [2 + rank for rank in range(hvd.size())]
    whole, own = layers(dimensions, parameters_dtype or dtype, process_set, **options)
    for step in range(4 if whole.track_running_stats else 3):
        whole.train(step < 3)
        own.train(step < 3)
        for layer in (whole, own):
            layer.zero_grad()
        inputs = {rank: batch(10 * step + rank, rows[rank], dimensions, dtype).requires_grad_() for rank in ranks}
        weights = {rank: batch(99 - rank, rows[rank], dimensions, dtype) for rank in ranks}
        mine = inputs[hvd.rank()].detach().clone().requires_grad_()

        expected = whole(torch.cat(list(inputs.values())).double())
        (expected * torch.cat(list(weights.values())).double()).sum().backward()
        result = own(mine.contiguous(memory_format=memory_format))
        (result * weights[hvd.rank()]).sum().backward()

        place = ranks.index(hvd.rank())
        assert_close(result, expected.split([rows[rank] for rank in ranks])[place].to(dtype), tolerance)
        assert_close(mine.grad, inputs[hvd.rank()].grad, tolerance)
        for ours, theirs in zip(own.parameters(), whole.parameters(), strict=True):
            if process_set.included():
                hvd.allreduce_(ours.grad, op=hvd.Sum, process_set=process_set)
            assert_close(ours.grad, theirs.grad.to(ours.dtype), tolerance)
        for ours, theirs in zip(own.buffers(), whole.buffers(), strict=True):
            assert_close(ours, theirs.to(ours.dtype), tolerance)


@scenario
def inputs_of_2_to_5_dimensions() -> None:
    for dimensions in TORCH_LAYERS:
        compare(dimensions)


@scenario
def inputs_whose_channels_are_last() -> None:
    for dimensions, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        compare(dimensions, memory_format=memory_format)
        compare(dimensions, dtype=torch.float32, tolerance=2e-4, memory_format=memory_format)


@scenario
def every_option() -> None:
    for options in (
        {"momentum": None},
        {"momentum": 0.5, "eps": 0.1},
        {"affine": False},
        {"track_running_stats": False},
    ):
        compare(**options)


@scenario
def a_rank_may_have_an_empty_batch() -> None:
    if hvd.size() > 1:
        compare(rows=[0, *[3] * (hvd.size() - 1)])
        compare(2, rows=[1, 1, *[0] * (hvd.size() - 2)])
        with pytest.raises(ValueError, match="expected more than 1 value per feature on all ranks together, got 1"):
            hvd.SyncBatchNorm(FEATURES)(batch(0, 1 if hvd.rank() == 0 else 0, 2, torch.float32))


@scenario
def single_and_half_precision() -> None:
    compare(dtype=torch.float32, tolerance=2e-4)
    for half, tolerance in ((torch.float16, 2e-2), (torch.bfloat16, 1e-1)):
        compare(dtype=half, parameters_dtype=torch.float32, tolerance=tolerance)
        if hvd.size() > 1:  # torch's own layer, which runs on one rank, rounds its sums to half precision
            compare(dtype=half, tolerance=tolerance)


@scenario
def a_mean_that_is_large_beside_the_deviation() -> None:
    layer = hvd.SyncBatchNorm(1)
    values = 10_000 + batch(hvd.rank(), 50, 2, torch.float32)[:, :1]
    result = layer(values)
    everything = torch.cat([10_000 + batch(rank, 50, 2, torch.float32)[:, :1] for rank in range(hvd.size())]).double()
    expected = (values.double() - everything.mean()) / everything.std(correction=0)
    assert_close(result.double(), expected, 1e-2)


@scenario
def in_a_process_set() -> None:
    if hvd.size() > 2:
        members = hvd.add_process_set([0, hvd.size() - 1])
        compare(process_set=members)
        layer = copy.deepcopy(hvd.SyncBatchNorm(FEATURES, process_set=members))
        assert layer.process_set is members
        hvd.remove_process_set(members)


@scenario
def every_layer_of_a_model_is_converted() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4, affine=False)), nn.Flatten()
    )
    whole = copy.deepcopy(model)
    parameters = list(model.parameters())
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model
    assert [type(each).__name__ for each in (model[1], model[2][1])] == ["SyncBatchNorm"] * 2
    assert all(ours is before for ours, before in zip(model.parameters(), parameters, strict=True))
    assert model.state_dict().keys() == whole.state_dict().keys()
    images = torch.randn(hvd.size(), 2, 3, 5, 5)
    expected = whole(images.flatten(0, 1)).chunk(hvd.size())[hvd.rank()]
    assert_close(model(images[hvd.rank()]), expected, 1e-5)
    again = hvd.convert_sync_batchnorm(model[1])
    assert again is model[1]
    alone = hvd.convert_sync_batchnorm(nn.BatchNorm1d(2).eval())
    assert isinstance(alone, hvd.SyncBatchNorm)
    assert not alone.training


@scenario
def an_input_without_features_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 dimensions, got 1"):
        hvd.SyncBatchNorm(FEATURES)(torch.ones(FEATURES))


def test_torch_sync_batch_norm(report: Report, name: str) -> None:
    assert report[name] == ""
