"""Gradients through collectives, against those that the rules of Horovod give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd
from tests.harness.scenarios import Report, Scenarios
from tests.tensorflow.ways import ALL_WAYS, assert_close

scenario = Scenarios(ranks=[1, 2, 3])


def weights(shape: Any, rank: int) -> Any:
    """What the loss of ``rank`` multiplies the results by."""
    size = tf.reduce_prod(shape)
    return tf.reshape(tf.cast(tf.range(size), tf.float32) + 10.0 * rank + 1.0, shape)


def gradient_of(collective: Callable[[Any], Any], way: Any, rows: int) -> Any:
    """The gradient of the sum of the weighted results by a tensor of so many rows."""

    def compute(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = collective(x)
            loss = tf.reduce_sum(result * weights(tf.shape(result), hvd.rank()))
        return tape.gradient(loss, x)

    return way(compute, tf.ones((rows, 2)))


def all_weights(shape: Any) -> list[Any]:
    return [weights(tf.constant(shape), rank) for rank in range(hvd.size())]


@scenario
def of_allreduce() -> None:
    average = sum(all_weights((2, 2))) / hvd.size()
    for way in ALL_WAYS:
        assert_close(gradient_of(hvd.allreduce, way, 2), average)
        total = gradient_of(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, name="a"), way, 2)
        assert_close(total, 0.5 * hvd.size() * average)
        grouped = gradient_of(lambda x: sum(hvd.grouped_allreduce([x, 2 * x])), way, 2)
        assert_close(grouped, 3 * average)
        halved = gradient_of(lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16), way, 2)
        assert_close(halved, average, 1e-3)


@scenario
def of_allgather() -> None:
    begin = sum(rank + 1 for rank in range(hvd.rank()))
    shape = (sum(rank + 1 for rank in range(hvd.size())), 2)
    average = sum(all_weights(shape)) / hvd.size()
    for way in ALL_WAYS:
        own = gradient_of(hvd.allgather, way, hvd.rank() + 1)
        assert_close(own, average[begin : begin + hvd.rank() + 1])
        both = gradient_of(lambda x: hvd.grouped_allgather([x, tf.cast(x, tf.int32)])[0], way, hvd.rank() + 1)
        assert_close(both, own)


@scenario
def of_broadcast() -> None:
    average = sum(all_weights((2, 2))) / hvd.size()
    for way in ALL_WAYS:
        own = gradient_of(lambda x: hvd.broadcast(x, root_rank=0), way, 2)
        assert_close(own, average if hvd.rank() == 0 else tf.zeros((2, 2)))


@scenario
def of_alltoall() -> None:
    """Each rank sends a row to each, and keeps one."""
    splits = [1] * hvd.size()
    place = hvd.rank()
    expected = [each[place] for each in all_weights((hvd.size(), 2))] + [tf.zeros(2)]
    for way in ALL_WAYS:
        own = gradient_of(lambda x: hvd.alltoall(x, splits=splits)[0], way, hvd.size() + 1)
        assert_close(own, tf.stack(expected))
        even = gradient_of(hvd.alltoall, way, hvd.size())
        assert_close(even, tf.stack(expected[:-1]))


@scenario
def of_reducescatter() -> None:
    for op, scale in ((hvd.Average, 1.0), (hvd.Sum, float(hvd.size()))):
        expected = tf.concat([scale * each for each in all_weights((1, 2))], 0)
        for way in ALL_WAYS:
            assert_close(gradient_of(lambda x, op=op: hvd.reducescatter(x, op=op), way, hvd.size()), expected)
            grouped = gradient_of(lambda x, op=op: hvd.grouped_reducescatter([x], op=op)[0], way, hvd.size())
            assert_close(grouped, expected)


@scenario
def of_a_gradient() -> None:
    """The second derivative of the cube of a sum."""
    x = tf.constant(2.0)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            cube = hvd.allreduce(x, op=hvd.Sum) ** 3
        first = inner.gradient(cube, x)
    total = 2.0 * hvd.size()
    assert_close(first, 3 * total**2 * hvd.size())
    assert_close(outer.gradient(first, x), 6 * total * hvd.size() ** 2)


@scenario
def there_is_none_through_a_maximum() -> None:
    for way in ALL_WAYS:
        with pytest.raises(RuntimeError, match=r"no gradient through op Max; use hvd\.Sum or hvd\.Average"):
            gradient_of(lambda x: hvd.allreduce(x, op=hvd.Max), way, 2)


def test_gradients(report: Report, name: str) -> None:
    assert report[name] == ""
