"""The collectives on torch tensors: every dtype and op at 1 to 4 ranks, against torch's own arithmetic."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import pytest
import torch

import hvdlite.torch as hvd
from tests.frontends.scenarios import Report, Scenarios, assert_close, seeded

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPES = ((), (0, 3), (7,), (3, 5, 2))
FOLDS: dict[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    hvd.Average: operator.add,
    hvd.Sum: operator.add,
    hvd.Min: torch.minimum,
    hvd.Max: torch.maximum,
    hvd.Product: operator.mul,
}
scenario = Scenarios(ranks=[1, 2, 3, pytest.param(4, marks=pytest.mark.faults)])


def sample(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers that any rank can compute for any other: sums and products of four of them fit in int8."""
    values = torch.randint(0, 4, shape, generator=seeded(rank))
    return (values if dtype in (torch.uint8, torch.bool) else values - 2).to(dtype)


def samples(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    return [sample(rank, shape, dtype) for rank in range(hvd.size())]


def reduced(op: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The reduction over all ranks; an average of whole numbers is truncated toward zero."""
    total = functools.reduce(FOLDS[op], (tensor.double() for tensor in samples(shape, dtype)))
    return (total / hvd.size() if op == hvd.Average else total).to(dtype)


@scenario
def allreduce_of_every_dtype_op_and_shape() -> None:
    cases = [(op, shape, dtype) for op in FOLDS for shape in SHAPES for dtype in INTEGERS + FLOATS]
    inputs = [sample(hvd.rank(), shape, dtype) for _, shape, dtype in cases]
    handles = [hvd.allreduce_async(tensor, op=case[0]) for case, tensor in zip(cases, inputs, strict=True)]
    for (op, shape, dtype), tensor, handle in zip(cases, inputs, handles, strict=True):
        result = hvd.synchronize(handle)
        assert result is not tensor
        assert_close(result, reduced(op, shape, dtype))
        assert torch.equal(tensor, sample(hvd.rank(), shape, dtype))


@scenario
def bool_is_or_and_and() -> None:
    stacked = torch.stack(samples((9,), torch.bool))
    own = sample(hvd.rank(), (9,), torch.bool)
    for op, expected in ((hvd.Sum, "any"), (hvd.Max, "any"), (hvd.Min, "all"), (hvd.Product, "all")):
        assert torch.equal(hvd.allreduce(own, op=op), getattr(stacked, expected)(dim=0))
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(own)


@scenario
def in_place_forms_return_the_tensor_itself() -> None:
    for dtype in INTEGERS + FLOATS:
        tensor = sample(hvd.rank(), (4, 3), dtype)
        assert hvd.allreduce_(tensor, op=hvd.Max) is tensor
        assert torch.equal(tensor, reduced(hvd.Max, (4, 3), dtype))
        tensor = sample(hvd.rank(), (4, 3), dtype)
        assert hvd.synchronize(hvd.broadcast_async_(tensor, hvd.size() - 1)) is tensor
        assert torch.equal(tensor, sample(hvd.size() - 1, (4, 3), dtype))


@scenario
def allgather_joins_different_first_dimensions() -> None:
    for dtype in (*INTEGERS, *FLOATS, torch.bool):
        parts = [sample(rank, (2 * rank, 3), dtype) for rank in range(hvd.size())]  # rank 0 has no rows
        assert torch.equal(hvd.allgather(parts[hvd.rank()], name=f"gather {dtype}"), torch.cat(parts))
    with pytest.raises(ValueError, match="at least one dimension"):
        hvd.allgather(torch.tensor(1.0))


@scenario
def broadcast_from_every_root() -> None:
    for root in range(hvd.size()):
        for dtype in (*INTEGERS, *FLOATS, torch.bool):
            for shape in SHAPES:
                own = sample(hvd.rank(), shape, dtype)
                assert torch.equal(hvd.broadcast(own, root), sample(root, shape, dtype))
                assert torch.equal(own, sample(hvd.rank(), shape, dtype))
    with pytest.raises(ValueError, match=f"root_rank {hvd.size()} is not a rank"):
        hvd.broadcast(torch.ones(1), hvd.size())


@scenario
def scale_factors_and_the_average_argument() -> None:
    ones = torch.ones(5)
    assert torch.equal(
        hvd.allreduce(ones, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), ones * 2 * hvd.size()
    )
    assert torch.equal(hvd.allreduce(ones, average=False), ones * hvd.size())
    with pytest.raises(ValueError, match="either op or average"):
        hvd.allreduce(ones, average=True, op=hvd.Sum)


@scenario
def compression_restores_the_dtype_and_leaves_integers_alone() -> None:
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        for dtype in (torch.int64, *FLOATS):
            own = sample(hvd.rank(), (6,), dtype)
            result = hvd.allreduce(own, op=hvd.Sum, compression=compression)
            assert_close(result, reduced(hvd.Sum, (6,), dtype))


@scenario
def results_live_on_the_cpu_and_have_no_history_without_a_gradient_to_compute() -> None:
    weight = torch.nn.Parameter(torch.full((3,), 2.0))
    with torch.device("meta"), torch.no_grad():  # where torch would make tensors in this thread
        for result in (hvd.allreduce(weight), hvd.allgather(weight), hvd.broadcast(weight * 1, 0)):
            assert type(result) is torch.Tensor
            assert not result.requires_grad
            assert result.unique().tolist() == [2.0]
    assert not hvd.synchronize(hvd.allreduce_async(weight)).requires_grad


@scenario
def ranks_may_submit_in_different_orders() -> None:
    names = [f"tensor {index}" for index in range(20)]
    own_order = names if hvd.rank() % 2 == 0 else names[::-1]
    handles = {name: hvd.allreduce_async(torch.tensor(float(name[7:])), name=name) for name in own_order}
    assert [hvd.synchronize(handles[name]).item() for name in names] == [float(index) for index in range(20)]
    assert hvd.synchronize(handles[names[0]]) is None
    with pytest.raises(ValueError, match="synchronized once"):
        hvd.poll(handles[names[0]])


@scenario
def a_mismatch_reaches_every_rank_and_the_session_goes_on() -> None:
    if hvd.size() > 1:
        with pytest.raises(hvd.Mismatch, match="differing") as caught:
            hvd.allreduce(torch.ones(2 + hvd.rank() // (hvd.size() - 1)), name="differing")
        assert f"{hvd.size() - 1}" in str(caught.value)
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name="differing").tolist() == [hvd.size()] * 2


def test_torch_collectives(report: Report, name: str) -> None:
    assert report[name] == ""


@pytest.mark.parametrize(
    ("tensor", "complaint"),
    [
        ([1.0], "expected a torch tensor, got list"),
        (torch.eye(3).to_sparse(), r"layout torch.sparse_coo is not supported; pass tensor.to_dense\(\)"),
        (torch.ones(2, device="meta"), "device meta is not supported"),
    ],
)
def test_a_tensor_that_cannot_be_sent_is_refused_at_the_call(tensor: torch.Tensor, complaint: str) -> None:
    hvd.init()
    try:
        for collective in (hvd.allreduce, hvd.allreduce_, hvd.allgather):
            with pytest.raises(ValueError, match=complaint):
                collective(tensor)
        with pytest.raises(ValueError, match=complaint):
            hvd.broadcast(tensor, 0)
    finally:
        hvd.shutdown()


def test_collectives_need_init() -> None:
    with pytest.raises(hvd.HorovodInternalError, match=r"call hvd.init\(\) first"):
        hvd.allreduce(torch.ones(1))
    with pytest.raises(ValueError, match=r"call hvd.init\(\) first"):
        hvd.rank()
