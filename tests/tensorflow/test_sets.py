"""Process sets, ranks with less data, ranks on different routes, and what a long training leaves behind."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import psutil
import tensorflow as tf

import hvdlite.tensorflow as hvd
from hvdlite.negotiation.replica import Work
from hvdlite.session import current
from hvdlite.tensorflow.operation import pending as tickets
from tests.harness.scenarios import Report, Scenarios
from tests.tensorflow.ways import WAYS, assert_close, by_numpy, compiled, eagerly, through

scenario = Scenarios(ranks=[2, 4])


@scenario
def collectives_and_tapes_in_process_sets() -> None:
    even, odd = ([rank for rank in range(hvd.size()) if rank % 2 == rest] for rest in (0, 1))
    sets = [hvd.add_process_set(even), hvd.add_process_set(odd)]
    own, ranks = sets[hvd.rank() % 2], (even, odd)[hvd.rank() % 2]
    mean = sum(ranks) / len(ranks)
    weight = tf.Variable(1.0)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = weight * x
        gradient = hvd.DistributedGradientTape(tape, process_set=own).gradient(loss, weight)
        return gradient, hvd.allgather(x[None], process_set=own), hvd.size_op(own.process_set_id)

    for way in WAYS:
        gradient, gathered, size = way(step, tf.constant(float(hvd.rank())))
        assert_close(gradient, mean)
        assert_close(gathered, [float(rank) for rank in ranks])
        assert int(size) == len(ranks)
    with tf.GradientTape() as tape:
        loss = weight * float(hvd.rank())
    found = hvd.DistributedGradientTape(tape, process_set=sets[0]).gradient(loss, weight)
    assert_close(found, mean if hvd.rank() % 2 == 0 else float(hvd.rank()))  # outside of the set it is this rank's own
    for each in sets:
        hvd.remove_process_set(each)


@scenario
def ranks_with_less_data_join() -> None:
    for way in WAYS:
        for step in range(2 * hvd.rank()):
            still = [rank for rank in range(hvd.size()) if 2 * rank > step]
            total = way(lambda: hvd.allreduce(1.0, op=hvd.Sum))
            assert float(total) == len(still)
        assert int(way(hvd.join)) == hvd.size() - 1


@scenario
def ranks_on_different_routes_work_together() -> None:
    way = (eagerly, compiled, by_numpy)[hvd.rank() % 3]

    def program(x: Any) -> Any:
        return hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum, name="routes"), hvd.allgather(x), hvd.broadcast(x, 1)

    (once, twice), gathered, broadcast = way(program, tf.fill([1], float(hvd.rank())))
    ranks = [float(rank) for rank in range(hvd.size())]
    assert_close(once, [sum(ranks)])
    assert_close(twice, [2 * sum(ranks)])
    assert_close(gathered, ranks)
    assert_close(broadcast, [1.0])


@scenario
def adasum_of_equal_gradients_is_their_own() -> None:
    for way in WAYS:
        assert_close(way(lambda: hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Adasum)), [1.0, 2.0])


@scenario
def two_hundred_steps_leave_nothing() -> None:
    weights = [tf.Variable(np.zeros((256, 256), np.float32)) for _ in range(4)]

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(weight * x) for weight in weights)
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.1 * gradient)
        return hvd.allgather(tf.reshape(loss, [1]))

    process = psutil.Process()
    for choice in ("compiled", "numpy"):
        with through(choice):
            function = tf.function(step)
            for _ in range(20):
                function(1.0)
            gc.collect()
            objects, memory = count_objects(), process.memory_info().rss
            held = [process.num_fds(), process.num_threads(), len(current().everyone.known)]
            for _ in range(200):
                function(1.0)
        gc.collect()
        tickets.give_up_ended()
        assert len(tickets._tickets) == 0
        assert count_objects() - objects < 200  # one a step would be enough to notice
        assert process.memory_info().rss - memory < 100 << 20  # the gradients of 200 steps are 200 MiB
        now = [process.num_fds(), process.num_threads(), len(current().everyone.known)]
        assert all(new < old + 20 for old, new in zip(held, now, strict=True)), (held, now)  # pools may still grow


def count_objects() -> int:
    """Returns how many objects there are, but for the records of batches, of which a group keeps the latest."""
    return sum(not isinstance(each, Work) for each in gc.get_objects())


def test_sets(report: Report, name: str) -> None:
    assert report[name] == ""
