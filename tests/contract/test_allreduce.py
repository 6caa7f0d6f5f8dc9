"""All-reduce on every plane: dtypes, operations, sizes, spans, scales, special values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hvdlite.planes.base import DataPlane
from hvdlite.tensors.dtypes import OP_NAMES, Average, DType, Max, Min, Product, Sum
from tests.contract import oracle
from tests.contract.planes import Group, spans_of

Array = npt.NDArray[Any]
SCALED = (
    DType.FLOAT16,
    DType.BFLOAT16,
    DType.FLOAT32,
    DType.FLOAT64,
    DType.INT8,
    DType.UINT8,
    DType.INT32,
    DType.INT64,
)


def allreduce(
    group: Group, inputs: Sequence[Array], dtype: DType, op: int = Sum, pre: float = 1.0, post: float = 1.0
) -> list[Array]:
    """The output of every rank, written apart from its input, which must not change."""

    def work(plane: DataPlane) -> Array:
        own = inputs[plane.rank]
        before, output = own.copy(), np.empty_like(own)
        plane.allreduce(spans_of((own, output)), dtype, op, pre, post)
        assert own.tobytes() == before.tobytes()
        return output

    return group.run(work)


def assert_reduced(
    group: Group, inputs: Sequence[Array], dtype: DType, op: int = Sum, pre: float = 1.0, post: float = 1.0
) -> None:
    outputs = allreduce(group, inputs, dtype, op, pre, post)
    what = f"{OP_NAMES[op]} of {len(inputs[0])} {dtype} over {group.size} ranks, scales {pre} and {post}"
    orders = group.fold_orders(inputs)[: 1 if op == Average else None]  # these are exact
    expected = [oracle.allreduce(order, dtype, op, pre, post) for order in orders]
    oracle.assert_one_of(outputs[0], expected, dtype, what)
    for rank, output in enumerate(outputs):
        assert output.tobytes() == outputs[0].tobytes(), f"{what}: rank {rank} differs from rank 0"


@pytest.mark.parametrize("dtype", DType, ids=str)
def test_every_dtype_and_operation(group: Group, dtype: DType) -> None:
    rng = np.random.default_rng(int(dtype))
    for op in oracle.OPS:
        assert_reduced(group, [oracle.random(rng, dtype, 4999) for _ in range(group.size)], dtype, op)


def test_every_length_around_the_boundaries(group: Group) -> None:
    rng = np.random.default_rng(1)
    for dtype in (DType.UINT8, DType.FLOAT32):
        for count in (0, 1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 4095, 4096, 4097, 100_003):
            assert_reduced(group, [oracle.random(rng, dtype, count) for _ in range(group.size)], dtype)


@pytest.mark.parametrize("dtype", SCALED, ids=str)
def test_scales_are_applied_before_and_after(group: Group, dtype: DType) -> None:
    rng = np.random.default_rng(2)
    for op in (Sum, Max):
        for pre, post in ((0.5, 1.0), (1.0, 1.0 / group.size), (3.7, -0.3)):
            inputs = [oracle.random(rng, dtype, 1237) for _ in range(group.size)]
            assert_reduced(group, inputs, dtype, op, pre, post)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64], ids=str)
def test_the_error_of_an_average_is_bounded(group: Group, dtype: DType) -> None:
    """The bound of docs/collectives.md, in `longdouble`, for any order of the additions."""
    rng = np.random.default_rng(7)
    inputs = [oracle.random(rng, dtype, 20_011) for _ in range(group.size)]
    output = oracle.widen(allreduce(group, inputs, dtype, Sum, post=1 / group.size)[0], dtype).astype(np.longdouble)
    values = np.array([oracle.widen(array, dtype) for array in inputs], np.longdouble)
    exact, magnitude = values.mean(axis=0), np.abs(values).mean(axis=0)
    rounding = 2.0**-53 if dtype is DType.FLOAT64 else 2.0**-24
    bound = (group.size + 1) * rounding * magnitude + oracle.half_a_unit(output, dtype)
    assert np.all(np.abs(output - exact) <= bound * (1 + 2.0**-20))  # products of roundings


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64], ids=str)
def test_special_values_survive(group: Group, dtype: DType) -> None:
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 65504.0, 65519.0, 65520.0, 6e-8, 1e-40, 3e38], np.float32)
    with np.errstate(over="ignore"):
        row = oracle.narrow(special, dtype).astype(oracle.STORAGE[dtype], copy=False)
    for op in (Sum, Min, Max, Product):
        # Every special value meets every other at every pair of ranks.
        inputs = [np.tile(np.roll(row, rank), 11).reshape(11, 11)[:, ::-1].ravel().copy() for rank in range(group.size)]
        inputs[0] = np.repeat(row, 11)
        assert_reduced(group, inputs, dtype, op)


def test_integers_wrap_around(group: Group) -> None:
    for dtype in (DType.UINT8, DType.INT8, DType.INT16, DType.INT32, DType.INT64):
        limits = np.iinfo(oracle.STORAGE[dtype])
        inputs = [np.array([limits.max, limits.min, 3] * 50, oracle.STORAGE[dtype]) for _ in range(group.size)]
        for op in (Sum, Product):
            assert_reduced(group, inputs, dtype, op)


def test_averages_of_integers_are_those_of_whole_numbers(group: Group) -> None:
    size, rng = group.size, np.random.default_rng(8)
    for dtype in oracle.INTEGERS:
        of_extremes = [oracle.extremes(dtype, rank, size) for rank in range(size)]
        for pre, post in ((1.0, 1 / size), (0.5, 1 / size), (1.0, 2 / size), (1.0, 0.7 / size), (3.7, -0.3)):
            assert_reduced(group, of_extremes, dtype, Average, pre, post)
        count = 17_503 if dtype is DType.INT32 else 1237  # the oracle computes with Python's integers
        many = [oracle.random(rng, dtype, count) for _ in range(size)]
        assert_reduced(group, many, dtype, Average, 1.0, 1 / size)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.UINT8], ids=str)
def test_spans_of_many_lengths_in_and_out_of_place(group: Group, dtype: DType) -> None:
    rng = np.random.default_rng(3)
    lengths = [0, 1, 0, 7, 5000, 1, 1, 0, 300, 12_345, 2, *rng.integers(0, 400, 200).tolist(), 0]
    inputs = [oracle.random(rng, dtype, sum(lengths)) for _ in range(group.size)]
    cuts = np.cumsum(lengths)[:-1]

    def work(plane: DataPlane) -> Array:
        reads = [part.copy() for part in np.split(inputs[plane.rank], cuts)]
        writes = [part if i % 2 == 0 else np.empty_like(part) for i, part in enumerate(reads)]
        plane.allreduce(spans_of(*zip(reads, writes, strict=True)), dtype, Sum, 1.0, 1.0)
        return np.concatenate(writes)

    outputs = group.run(work)
    expected = [oracle.allreduce(order, dtype, Sum) for order in group.fold_orders(inputs)]
    oracle.assert_one_of(outputs[0], expected, dtype, "spans")
    assert all(output.tobytes() == outputs[0].tobytes() for output in outputs)


def test_no_spans_is_nothing_to_do(group: Group) -> None:
    group.run(lambda plane: plane.allreduce(spans_of(), DType.FLOAT32, Sum, 1.0, 1.0))


def test_many_thousand_small_rows(trio: Group) -> None:
    def work(plane: DataPlane) -> Array:
        array = np.full((3000, 33), plane.rank + 1, np.int16)
        plane.allreduce(spans_of(*((row, row) for row in array)), DType.INT16, Sum, 1.0, 1.0)
        return array

    for array in trio.run(work):
        assert (array == 6).all()
