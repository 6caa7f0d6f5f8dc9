"""Reduce-scatter and its case reduce on every plane: dtypes, operations, parts of any length, many spans, scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hvdlite.planes.base import DataPlane
from hvdlite.tensors.dtypes import OP_NAMES, Average, DType, Max, Sum
from tests.contract import oracle
from tests.contract.joined import PLANES
from tests.contract.planes import Group, PlaneUnderTest, sending, spans_of

Array = npt.NDArray[Any]


def split(array: Array, lengths: Sequence[int]) -> list[Array]:
    return np.split(array, np.cumsum(lengths)[:-1])


def reducescatter(
    plane: DataPlane, own: Array, lengths: Sequence[int], dtype: DType, op: int = Sum, pre: float = 1, post: float = 1
) -> Array:
    """This rank's part, written apart from the input, which must not change. Other parts have nowhere to be written."""
    before = own.copy()
    parts = split(own, lengths)
    output = np.empty_like(parts[plane.rank])
    spans = [sending(part) for part in parts]
    spans[plane.rank] = spans_of((parts[plane.rank], output))
    plane.reducescatter(spans, dtype, op, pre, post)
    assert own.tobytes() == before.tobytes()
    return output


def assert_scattered(
    group: Group, lengths: Sequence[int], dtype: DType, op: int = Sum, pre: float = 1, post: float = 1
) -> None:
    rng = np.random.default_rng(int(dtype) + sum(lengths))
    inputs = [oracle.random(rng, dtype, sum(lengths)) for _ in range(group.size)]
    outputs = group.run(lambda plane: reducescatter(plane, inputs[plane.rank], lengths, dtype, op, pre, post))
    what = f"{OP_NAMES[op]} of {lengths} {dtype}, scales {pre} and {post}"
    assert [len(output) for output in outputs] == lengths
    orders = group.fold_orders(inputs)[: 1 if op == Average else None]  # these are exact
    expected = [oracle.allreduce(order, dtype, op, pre, post) for order in orders]
    oracle.assert_one_of(np.concatenate(outputs), expected, dtype, what)


@pytest.mark.parametrize("dtype", DType, ids=str)
def test_every_dtype_and_operation(group: Group, dtype: DType) -> None:
    for op in oracle.OPS:
        assert_scattered(group, [1999, 1, 0, 2047, 333, 64][: group.size], dtype, op)


@pytest.mark.parametrize("dtype", [DType.UINT8, DType.FLOAT32, DType.FLOAT64], ids=str)
def test_even_parts_around_the_boundaries(group: Group, dtype: DType) -> None:
    for count in (0, 1, 2, 7, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1023, 1024, 1025, 4095, 4096, 4097, 20_003):
        assert_scattered(group, [count] * group.size, dtype)


@pytest.mark.parametrize("dtype", [DType.INT16, DType.BFLOAT16, DType.FLOAT64], ids=str)
def test_uneven_and_empty_parts(group: Group, dtype: DType) -> None:
    for lengths in ([70_001, 0, 1, 4096, 12_289, 64], [1, 30_000, 1, 1, 1, 1], [0, 0, 5, 0, 77_777, 0]):
        assert_scattered(group, lengths[: group.size], dtype)
        assert_scattered(group, lengths[: group.size][::-1], dtype)


def test_reduce_to_each_root(group: Group) -> None:
    for root in range(group.size):
        for count in (1, 1000, 50_001):
            assert_scattered(group, [count if rank == root else 0 for rank in range(group.size)], DType.FLOAT32)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.INT32], ids=str)
def test_scales_are_applied_before_and_after(group: Group, dtype: DType) -> None:
    for op in (Sum, Max):
        for pre, post in ((0.5, 1.0), (1.0, 1.0 / group.size), (3.7, -0.3)):
            assert_scattered(group, [700, 3, 1501, 0, 64, 65][: group.size], dtype, op, pre, post)


def test_averages_of_integers_are_those_of_whole_numbers(group: Group) -> None:
    for dtype in oracle.INTEGERS:
        for lengths in ([700, 3, 9001, 0, 64, 65], [0, 333, 0, 0, 0, 0]):
            assert_scattered(group, lengths[: group.size], dtype, Average, 1.0, 1 / group.size)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.UINT8], ids=str)
def test_parts_of_many_spans_in_and_out_of_place(group: Group, dtype: DType) -> None:
    rng = np.random.default_rng(3)
    rows = [[0, 1, 0, 5000, 7], [], [1] * 300, [12_345, 0, 2], rng.integers(0, 200, 150).tolist(), [64]][: group.size]
    lengths = [sum(row) for row in rows]
    inputs = [oracle.random(rng, dtype, sum(lengths)) for _ in range(group.size)]

    def work(plane: DataPlane) -> Array:
        parts = [split(part.copy(), row) for part, row in zip(split(inputs[plane.rank], lengths), rows, strict=True)]
        own = parts[plane.rank]
        writes = [row if i % 2 == 0 else np.empty_like(row) for i, row in enumerate(own)]
        spans = [sending(*part) for part in parts]
        spans[plane.rank] = spans_of(*zip(own, writes, strict=False))
        plane.reducescatter(spans, dtype, Sum, 1.0, 1.0)
        return np.concatenate(writes)[: lengths[plane.rank]]

    expected = [oracle.allreduce(order, dtype, Sum) for order in group.fold_orders(inputs)]
    oracle.assert_one_of(np.concatenate(group.run(work)), expected, dtype, "spans")


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64], ids=str)
@pytest.mark.parametrize("kind", [kind for kind in PLANES if kind.folds_in_rank_order], ids=lambda kind: kind.name)
def test_the_bits_are_those_of_an_allreduce(kind: PlaneUnderTest, dtype: DType) -> None:
    with kind.open(max(kind.sizes), progress_timeout_s=15.0) as planes:
        group = Group(kind, planes)
        lengths = [9001, 17, 0, 20_000, 64][: group.size]
        rng = np.random.default_rng(4)
        inputs = [oracle.random(rng, dtype, sum(lengths)) for _ in range(group.size)]

        def work(plane: DataPlane) -> tuple[Array, Array]:
            whole = inputs[plane.rank].copy()
            part = reducescatter(plane, whole, lengths, dtype, Sum, 1.1, 0.7)
            plane.allreduce(spans_of((whole, whole)), dtype, Sum, 1.1, 0.7)
            return part, split(whole, lengths)[plane.rank]

        for part, reduced in group.run(work):
            assert part.tobytes() == reduced.tobytes()


def test_no_spans_is_nothing_to_do(group: Group) -> None:
    nothing = [spans_of()] * group.size
    group.run(lambda plane: plane.reducescatter(nothing, DType.FLOAT32, Sum, 1.0, 1.0))
