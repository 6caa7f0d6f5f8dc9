"""The collectives on tensors of TensorFlow, eager, in graphs on both routes and in sessions, at 1 to 3 ranks."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd
from hvdlite.tensorflow.operation.binding import DTYPES
from tests.harness.scenarios import Report, Scenarios
from tests.tensorflow.ways import ALL_WAYS, GRAPHS, WAYS, assert_close, compiled, eagerly, in_session

INTEGERS = (tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64)
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
OTHERS = (tf.bool, tf.uint16, tf.uint32, tf.uint64, tf.complex64, tf.complex128)
SHAPES = ((), (0, 3), (7,), (3, 5, 2))
FOLDS = {hvd.Sum: np.add, hvd.Min: np.minimum, hvd.Max: np.maximum, hvd.Product: np.multiply}
scenario = Scenarios(ranks=[1, 2, 3])


def sample(rank: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Small whole numbers that any rank can compute for any other: sums and products of four of them fit in int8."""
    values = np.random.RandomState(rank).randint(0, 4, shape)
    return tf.cast(values if dtype.is_unsigned or dtype == tf.bool else values - 2, dtype)


def samples(shape: tuple[int, ...], dtype: Any) -> list[Any]:
    return [sample(rank, shape, dtype) for rank in range(hvd.size())]


def reduced(op: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """The reduction over all ranks; an average of whole numbers is truncated toward zero."""
    values = [tf.cast(tensor, tf.float64).numpy() for tensor in samples(shape, dtype)]
    if op == hvd.Average:
        return tf.cast(np.trunc(sum(values) / hvd.size()) if dtype.is_integer else sum(values) / hvd.size(), dtype)
    total = values[0]
    for value in values[1:]:
        total = FOLDS[op](total, value)
    return tf.cast(total, dtype)


@scenario
def allreduce_of_every_dtype_op_and_shape() -> None:
    cases = [(op, SHAPES[-1], dtype) for op in (hvd.Average, *FOLDS) for dtype in INTEGERS + FLOATS]
    cases += [(hvd.Sum, shape, tf.float32) for shape in SHAPES]
    inputs = [sample(hvd.rank(), shape, dtype) for _, shape, dtype in cases]

    def reduce_all(*tensors: Any) -> Any:
        return [hvd.allreduce(tensor, op=case[0]) for case, tensor in zip(cases, tensors, strict=True)]

    for way in ALL_WAYS:
        for (op, shape, dtype), result in zip(cases, way(reduce_all, *inputs), strict=True):
            assert_close(result, reduced(op, shape, dtype))


@scenario
def grouped_allreduce_of_tensors_of_several_dtypes() -> None:
    inputs = [sample(hvd.rank(), (3, 2), dtype) for dtype in INTEGERS + FLOATS]

    def reduce_all(*tensors: Any) -> Any:
        return hvd.grouped_allreduce(tensors, op=hvd.Sum, name="several")

    for way in ALL_WAYS:
        for tensor, result in zip(inputs, way(reduce_all, *inputs), strict=True):
            assert_close(result, reduced(hvd.Sum, (3, 2), tensor.dtype))
        assert list(way(lambda: hvd.grouped_allreduce([]))) == []


@scenario
def scaled_and_compressed() -> None:
    own = sample(hvd.rank(), (6,), tf.float32)
    total = reduced(hvd.Sum, (6,), tf.float32)
    for way in ALL_WAYS:
        scaled = way(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), own)
        assert_close(scaled, 2 * total)
        for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
            both = way(lambda x, of=compression: hvd.grouped_allreduce([x, x], op=hvd.Sum, compression=of), own)
            assert_close(both[1], total)
            assert_close(way(lambda x, of=compression: hvd.allreduce(x, op=hvd.Sum, compression=of), own), total)


@scenario
def autograph_rewrites_a_compressor_of_the_user_and_nothing_of_hvdlite() -> None:
    callers = set()

    class Limited(hvd.Compressor):  # type: ignore[misc]
        """Has branches over tensors, which only AutoGraph understands in graphs."""

        @staticmethod
        def compress(tensor: Any) -> Any:
            callers.update(frame.name for frame in traceback.extract_stack())
            if tf.reduce_max(tensor) > 2.0:
                tensor = tf.minimum(tensor, 2.0)
            return tensor, None

        @staticmethod
        def decompress(tensor: Any, context: None) -> Any:
            if tf.reduce_max(tensor) > 1.0:
                tensor += 0.5
            return tensor

    own, weight = tf.fill([hvd.size()], hvd.rank() + 1.0), tf.Variable(tf.ones(2))
    mean = sum(min(rank + 1.0, 2.0) for rank in range(hvd.size())) / hvd.size()
    mean += 0.5 if mean > 1 else 0.0

    def program() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight) * own[0]
        gradient = hvd.DistributedGradientTape(tape, compression=Limited).gradient(loss, weight)
        reduced = hvd.allreduce(own, compression=Limited), hvd.reducescatter(own, compression=Limited)
        return gradient, *reduced

    for way in WAYS:
        callers.clear()
        for result, shape in zip(way(program), ([2], [hvd.size()], [1]), strict=True):
            assert_close(result, tf.fill(shape, mean))
        rewritten = {name for name in callers if name.startswith("tf__")} - {"tf__extract_stack"}
        assert rewritten == ({"tf__program", "tf__compress"} if way in GRAPHS else set())


@scenario
def allgather_of_every_dtype() -> None:
    dtypes = INTEGERS + FLOATS + OTHERS
    own = [sample(hvd.rank(), (hvd.rank(), 2), dtype) for dtype in dtypes]
    for way in ALL_WAYS:
        results = way(lambda *tensors: [hvd.allgather(tensor) for tensor in tensors], *own)
        for dtype, result in zip(dtypes, results, strict=True):
            assert_close(result, tf.concat([sample(rank, (rank, 2), dtype) for rank in range(hvd.size())], 0))


@scenario
def grouped_allgather_of_unequal_rows() -> None:
    parts = [sample(rank, (2 * rank + 1, 3), tf.int32) for rank in range(hvd.size())]
    for way in ALL_WAYS:
        first, second = way(lambda x: hvd.grouped_allgather([x, tf.cast(x, tf.float64)]), parts[hvd.rank()])
        assert_close(first, tf.concat(parts, 0))
        assert_close(second, tf.cast(tf.concat(parts, 0), tf.float64))


@scenario
def broadcast_of_every_dtype_from_every_root() -> None:
    cases = [(index % hvd.size(), dtype) for index, dtype in enumerate(INTEGERS + FLOATS + OTHERS)]
    own = [sample(hvd.rank(), (4, 2), dtype) for _, dtype in cases]

    def broadcast_all(*tensors: Any) -> Any:
        return [hvd.broadcast(tensor, root) for tensor, (root, _) in zip(tensors, cases, strict=True)]

    for way in ALL_WAYS:
        for (root, dtype), result in zip(cases, way(broadcast_all, *own), strict=True):
            assert_close(result, sample(root, (4, 2), dtype))


@scenario
def dtypes_of_a_byte_and_less_are_moved_and_not_reduced() -> None:
    names = [dtype.name for dtype in map(tf.as_dtype, DTYPES) if dtype.name.startswith(("float8", "float4", "int4"))]
    assert {"float8_e4m3fn", "float8_e5m2", "int4"} <= set(names)  # which TensorFlow 2.16 has
    for name in [*names, "uint4"]:
        kind = tf.as_dtype(name).as_numpy_dtype
        parts = [np.array([[rank % 2, 1]] * (rank + 1), kind) for rank in range(hvd.size())]
        own, first = tf.convert_to_tensor(parts[hvd.rank()]), tf.convert_to_tensor(parts[-1])

        def move(own: Any, first: Any) -> Any:
            everything, _ = hvd.grouped_allgather([own, tf.zeros(1)])
            exchanged, _ = hvd.alltoall(own, [1] + [0] * (hvd.size() - 1))
            return hvd.allgather(own), everything, hvd.broadcast(first, hvd.size() - 1), exchanged

        for way in ALL_WAYS:
            gathered, everything, received, exchanged = way(move, own, first)
            assert {each.dtype for each in (gathered, everything, received, exchanged)} == {tf.as_dtype(name)}
            for each in (gathered, everything):
                np.testing.assert_array_equal(each.numpy(), np.concatenate(parts))
            np.testing.assert_array_equal(received.numpy(), parts[-1])
            assert len(exchanged) == (hvd.size() if hvd.rank() == 0 else 0)
            with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=f"{name} is not supported by allr"):
                way(hvd.allreduce, own)


@scenario
def alltoall_with_and_without_splits() -> None:
    own = tf.range(2 * hvd.size()) + 100 * hvd.rank()
    every = [tf.range(2 * hvd.size()) + 100 * rank for rank in range(hvd.size())]
    splits = [rank % 2 + hvd.rank() % 2 for rank in range(hvd.size())]
    begin = sum(rank % 2 for rank in range(hvd.rank()))
    for way in ALL_WAYS:
        assert_close(way(hvd.alltoall, own), tf.concat([each[2 * hvd.rank() :][:2] for each in every], 0))
        received, rows = way(hvd.alltoall, own, tf.constant(splits))
        counts = [hvd.rank() % 2 + rank % 2 for rank in range(hvd.size())]
        assert rows.numpy().tolist() == counts
        assert received.dtype == own.dtype
        assert len(received) == sum(counts)
        firsts = [begin + hvd.rank() * (rank % 2) for rank in range(hvd.size())]
        taken = [each[first:][:count] for each, first, count in zip(every, firsts, counts, strict=True)]
        assert_close(received, tf.concat(taken, 0))


@scenario
def reducescatter_of_unequal_rows() -> None:
    rows = 2 * hvd.size() + 1
    total = reduced(hvd.Sum, (rows, 2), tf.float32)
    own = sample(hvd.rank(), (rows, 2), tf.float32)
    begin = 0 if hvd.rank() == 0 else 3 + 2 * (hvd.rank() - 1)
    part = total[begin : begin + (3 if hvd.rank() == 0 else 2)]
    for way in ALL_WAYS:
        assert_close(way(lambda x: hvd.reducescatter(x, op=hvd.Sum), own), part)
        for each in way(lambda x: hvd.grouped_reducescatter([x, x], op=hvd.Sum), own):
            assert_close(each, part)
        assert_close(way(hvd.reducescatter, own), part / hvd.size())


@scenario
def shapes_are_known_while_a_graph_is_built() -> None:
    seen = []

    def look(x: Any) -> Any:
        results = [hvd.allreduce(x), hvd.broadcast(x, 0), hvd.allgather(x), hvd.reducescatter(x)]
        seen.extend(result.shape.as_list() for result in results)
        return results

    for way in (*GRAPHS, in_session):
        way(look, tf.zeros((hvd.size(), 3)))
        assert seen[-4:] == [[hvd.size(), 3], [hvd.size(), 3], [None, 3], [None, 3]]


@scenario
def numbers_lists_arrays_and_variables_are_tensors() -> None:
    for way in WAYS:
        assert_close(way(lambda: hvd.allreduce(2.5)), 2.5)
        assert_close(way(lambda: hvd.allreduce([1, 2], op=hvd.Sum)), [hvd.size(), 2 * hvd.size()])
        assert_close(way(lambda: hvd.allreduce(np.ones(3, np.float64))), tf.ones(3, tf.float64))
        variable = tf.Variable([1.0, 2.0])
        assert_close(way(lambda of=variable: hvd.allreduce(of)), [1.0, 2.0])


@scenario
def a_rank_in_a_graph_meets_a_rank_that_runs_eagerly() -> None:
    def program(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum), hvd.allgather(x), hvd.allreduce(2 * x, op=hvd.Sum)

    way = compiled if hvd.rank() % 2 else eagerly
    total, gathered, twice = way(program, tf.fill([2], float(hvd.rank())))
    ranks = range(hvd.size())
    assert_close(total, tf.fill([2], float(sum(ranks))))
    assert_close(gathered, [float(rank) for rank in ranks for _ in range(2)])
    assert_close(twice, 2 * total)


def test_collectives(report: Report, name: str) -> None:
    assert report[name] == ""
