"""No order in which graphs are executed holds up a collective, even with one thread of TensorFlow's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd
from hvdlite.session import group_of
from hvdlite.tensorflow.operation import binding
from hvdlite.tensorflow.operation import pending as tickets
from hvdlite.tensorflow.operation.calls import ARRAYS, Call, encoded
from tests.harness.patience import until
from tests.harness.scenarios import Report, Scenarios
from tests.tensorflow.ways import GRAPHS, assert_close, compiled, through

scenario = Scenarios(ranks=[2, 3])


@scenario
def tensorflow_has_one_thread_between_operations() -> None:
    tf.config.threading.set_inter_op_parallelism_threads(1)


@scenario
def fifty_independent_collectives() -> None:
    def many(x: Any) -> Any:
        return [hvd.allreduce(x * number, op=hvd.Sum) for number in range(50)]

    for way in GRAPHS:
        for number, result in enumerate(way(many, tf.ones(3))):
            assert_close(result, tf.fill([3], float(number * hvd.size())))


@scenario
def named_collectives_of_one_function_in_another_order_on_each_rank() -> None:
    """And with other operations that have state between them, also in a branch and in a loop."""
    orders = [[(index + rank) % 5 for index in range(5)] for rank in range(hvd.size())]

    def many(x: Any) -> Any:
        results = [x] * 5
        for index in orders[hvd.rank()]:
            results[index] = hvd.allreduce(x * (index + hvd.rank()), op=hvd.Sum, name=f"ordered {index}")
            tf.debugging.assert_equal(hvd.size_op(), hvd.size())
        return tf.stack(results)

    def program(x: Any) -> Any:
        branch = tf.cond(x[0] > 0, lambda: many(x), lambda: tf.zeros((5, 2)))
        _, total = tf.while_loop(lambda i, _: i < 3, lambda i, total: (i + 1, total + many(x)), (0, branch))
        return many(x), total

    for way in GRAPHS:
        once, total = way(program, tf.ones(2))
        expected = [[float(hvd.size() * index + sum(range(hvd.size())))] * 2 for index in range(5)]
        assert_close(once, expected)
        assert_close(total, 4 * tf.constant(expected))


@scenario
def independent_collectives_of_one_function_are_in_flight_at_once_and_travel_together() -> None:
    def many(x: Any) -> Any:
        return [hvd.allreduce(x * number, op=hvd.Sum) for number in range(12)]

    everyone = group_of(hvd.global_process_set)
    for choice in ("compiled", "numpy"):
        with through(choice):
            function = tf.function(many).get_concrete_function(tf.ones(2))
        hvd.barrier()
        before = everyone.statistics().batches
        until(lambda: not in_flight().is_stream)  # in which turns come by themselves
        with ThreadPoolExecutor(1) as other, in_flight().burst():  # which keeps them until all have started
            call = other.submit(function, tf.ones(2))
            while len(tickets._tickets) < 12:
                assert not call.done()
                time.sleep(0.001)
        for number, result in enumerate(call.result()):
            assert_close(result, tf.fill([2], float(number * hvd.size())))
        assert 1 <= everyone.statistics().batches - before < 12


@scenario
def one_name_several_times_in_a_function() -> None:
    """As of two losses of one model. Each call starts when the one before it is done."""
    weight = tf.Variable(2.0)

    def gradient(factor: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = weight * factor
        return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, weight)

    def program(x: Any) -> Any:
        found = [gradient(1.0 * x), gradient(2.0 * x)]
        found.append(tf.function(gradient)(3.0 * x))
        found.append(tf.cond(x > 0, lambda: gradient(4.0 * x), lambda: 0.0))
        found.append(gradient(5.0 * x))
        _, total = tf.while_loop(lambda i, _: i < 3, lambda i, total: (i + 1, total + gradient(x)), (0, 0.0))
        return *found, total, gradient(6.0 * x)

    for way in GRAPHS:
        factors = [1, 2, 3, 4, 5, 3, 6]
        for factor, found in zip(factors, way(program, tf.constant(1.0)), strict=True):
            assert_close(found, float(factor * hvd.size()))


@scenario
def calls_without_names_beside_functions_with_variables_and_a_loop_over_a_dataset() -> None:
    """TensorFlow orders a function by its variables, if it has some, and by nothing else."""
    variable = tf.Variable(1.0)
    inner = tf.function(lambda x: hvd.allreduce(x * variable, op=hvd.Sum))

    def program(x: Any) -> Any:
        found = [hvd.allreduce(x, op=hvd.Sum), inner(2 * x), hvd.allreduce(3 * x, op=hvd.Sum), inner(4 * x)]
        total = 0.0
        for number in tf.data.Dataset.range(3):
            total += hvd.allreduce(tf.cast(number, tf.float32) * variable, op=hvd.Max)
        return [*found, hvd.allreduce(5 * x, op=hvd.Sum), total]

    for choice in ("compiled", "numpy"):
        with through(choice):
            function = tf.function(program)
        for _ in range(5):
            found = [float(each) for each in function(tf.constant(1.0))]
            assert found == [*(float(hvd.size() * factor) for factor in range(1, 6)), 3.0]


@scenario
def a_result_that_only_one_rank_uses() -> None:
    """The others start the collective, too, and wait for it before their function returns."""

    def program(x: Any) -> Any:
        total = hvd.allreduce(x, op=hvd.Sum, name="for one")
        hvd.allreduce(x, op=hvd.Sum, name="for nobody")
        return total if hvd.rank() == 0 else x

    def uneven(x: Any) -> Any:
        hvd.allreduce(tf.ones(2 + hvd.rank()), name="uneven for nobody")
        return x

    for choice in ("compiled", "numpy"):
        with through(choice):
            result = tf.function(program)(tf.ones(2))
            assert "for one" not in names_in_flight()
            assert "for nobody" not in names_in_flight()
            assert_close(result, tf.fill([2], float(hvd.size()) if hvd.rank() == 0 else 1.0))
            with pytest.raises(tf.errors.InvalidArgumentError, match="shape of tensor 'uneven for nobody'"):
                tf.function(uneven)(tf.ones(2))


@scenario
def what_follows_a_barrier_in_the_program_comes_after_it() -> None:
    def program(x: Any) -> Any:
        hvd.allreduce(x)
        hvd.barrier()
        return hvd.rank_op()

    ends = {"compiled": "HvdliteFinish", "numpy": "HvdliteSettle"}
    for choice, end in ends.items():
        with through(choice):
            operations = tf.function(program).get_concrete_function(tf.constant(1)).graph.get_operations()
        (number,) = [each for each in operations if each.type == "PyFunc" and "Hvdlite" not in each.name]
        before, unseen = set(), [number]
        while unseen:
            new = {*(tensor.op for tensor in unseen[-1].inputs), *unseen.pop().control_inputs} - before
            before |= new
            unseen += new
        (barrier,) = [each.name for each in before if each.type == end]
        assert "Hvdlite_barrier" in barrier


@scenario
def two_collectives_in_each_round_of_a_parallel_loop() -> None:
    def loop(x: Any) -> Any:
        def body(index: Any, left: Any, right: Any) -> Any:
            return index + 1, left + hvd.allreduce(x, op=hvd.Sum), right + hvd.allreduce(2 * x, op=hvd.Sum)

        start = (0, tf.zeros(3), tf.zeros(3))
        return tf.while_loop(lambda index, *_: index < 20, body, start, parallel_iterations=10)

    for way in GRAPHS:
        _, left, right = way(loop, tf.ones(3))
        assert_close(left, tf.fill([3], 20.0 * hvd.size()))
        assert_close(right, tf.fill([3], 40.0 * hvd.size()))


@scenario
def a_branch_that_all_ranks_take() -> None:
    def branch(x: Any, which: Any) -> Any:
        return tf.cond(which > 0, lambda: hvd.allreduce(x, op=hvd.Sum), lambda: hvd.allgather(x)[: len(x)])

    for way in GRAPHS:
        assert_close(way(branch, tf.ones(3), tf.constant(1)), tf.fill([3], float(hvd.size())))
        assert_close(way(branch, tf.ones(3), tf.constant(0)), tf.ones(3))


@scenario
def a_loop_over_a_dataset_that_all_ranks_leave_at_the_same_step() -> None:
    """AutoGraph makes of the loop a dataset whose function is the loop's body."""

    def add(x: Any, total: Any) -> Any:
        return total + hvd.allreduce(x, op=hvd.Sum)

    for way in GRAPHS:
        traced = tf.function(add)
        assert_close(way(traced, tf.ones(3), tf.zeros(3)), tf.fill([3], float(hvd.size())))

        def loop(numbers: Any, traced: Any = traced) -> Any:
            total = tf.zeros(3)
            for number in numbers:
                total = traced(hvd.allreduce(tf.fill([3], number), op=hvd.Max), total)
                if number > 10.0:
                    break
            return total

        numbers = tf.data.Dataset.range(100, output_type=tf.float32)
        assert_close(way(loop, numbers), tf.fill([3], 66.0 * hvd.size()))


def in_threads(functions: Sequence[Callable[[], Any]]) -> list[Any]:
    """Calls each in a thread of its own, and the next when the one before has a collective in flight."""
    results: list[Any] = [None] * len(functions)

    def call(index: int) -> None:
        results[index] = functions[index]()

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(functions))]
    for thread in threads:
        before = set(tickets._tickets)
        thread.start()
        while thread.is_alive() and not tickets._tickets.keys() - before:
            thread.join(0.01)
    for thread in threads:
        thread.join()
    return results


def chain(x: Any, count: int) -> Any:
    """So many collectives, each of the result of the one before."""
    for number in range(count):
        x = hvd.allreduce(x, name=f"link {number} of {count}") + 1.0
    return x


@scenario
def functions_in_threads_that_begin_in_another_order_on_each_rank() -> None:
    """Each waits for a rank that has begun another one, which has the only thread of TensorFlow there, if it waits."""

    def first(x: Any) -> Any:
        return chain(x, 10)

    def second(x: Any) -> Any:
        return chain(x, 12)

    def third(x: Any) -> Any:
        return chain(x, 14)

    order = [(index + hvd.rank()) % 3 for index in range(3)]
    for choice in ("compiled", "numpy"):
        with through(choice):
            functions = [tf.function(each) for each in (first, second, third)]
            starts = [tf.fill([2], 100.0 * index) for index in range(3)]
            results = in_threads([partial(functions[index], starts[index]) for index in order])
        for index, result in zip(order, results, strict=True):
            assert_close(result, tf.fill([2], 102.0 * index + 10.0))


@scenario
def a_call_without_a_name_in_a_function_that_another_thread_traces_is_refused() -> None:
    def refused() -> None:
        with pytest.raises(ValueError, match="allreduce needs a name here, hvd.allreduce"):
            compiled(hvd.allreduce, tf.ones(3))

    with ThreadPoolExecutor(1) as other:
        other.submit(refused).result()


@scenario
def runs_that_fail_beside_their_collective_leave_nothing() -> None:
    """What fails takes so long that the collective has been started."""

    def step(x: Any, matrix: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum) + tf.reduce_sum(tf.linalg.inv(matrix))

    for choice in ("compiled", "numpy"):
        with through(choice):
            function = tf.function(step)
            for _ in range(10):
                with pytest.raises(tf.errors.InvalidArgumentError):
                    function(tf.ones(3), tf.fill((300, 300), np.nan))
            for _ in range(2):
                assert_close(function(tf.ones(3), tf.eye(2)), tf.fill([3], hvd.size() + 2.0))
        tickets.give_up_ended()
        assert not tickets._tickets, choice


@scenario
def a_run_that_fails_returns_before_the_others_come_and_the_next_of_its_name_waits_for_them() -> None:
    def step(x: Any, matrix: Any) -> Any:
        total = hvd.allreduce(x, op=hvd.Sum, name="one name")
        return total * tf.reduce_max(tf.linalg.inv(matrix))  # TensorFlow 2.16 does not run what is multiplied by 0

    def eager(x: Any, matrix: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum, name="one name")

    for choice in ("compiled", "numpy"):
        with through(choice):
            function = tf.function(step)
            function(tf.ones(3), tf.eye(2))
        for next_one in (function, eager):
            if hvd.rank() > 0:
                hvd.barrier()
                totals = [function(tf.ones(3), tf.eye(2)) for _ in range(2)]
            else:
                fails_while_its_collective_waits(function)
                with ThreadPoolExecutor(1) as other:
                    call = other.submit(next_one, tf.ones(3), tf.eye(2))
                    while not (call.done() or in_flight()._deferred):
                        time.sleep(0.001)
                    hvd.barrier()
                totals = [call.result()]
            for total in totals:
                assert_close(total, tf.fill([3], float(hvd.size())))
        tickets.give_up_ended()
        assert not tickets._tickets, choice


@scenario
def a_start_that_is_interrupted_ends_its_graph() -> None:
    interrupted = mock.patch.object(binding, "start", side_effect=KeyboardInterrupt)
    with interrupted, pytest.raises(tf.errors.CancelledError, match="interrupted while it started"):
        compiled(lambda: hvd.allreduce(tf.ones(2)))


def fails_while_its_collective_waits(function: Any) -> None:
    """Calls ``function``, whose collective needs the other ranks, until it has failed after it had started that."""
    while "one name" not in names_in_flight():
        with pytest.raises(tf.errors.InvalidArgumentError):
            function(tf.ones(3), tf.fill((300, 300), np.nan))


def in_flight() -> Any:
    return group_of(hvd.global_process_set)._in_flight


def names_in_flight() -> list[str]:
    return [entry.name for entry in in_flight().all()]


@scenario
def the_news_of_a_run_that_is_over_does_not_reach_the_next() -> None:
    text = encoded(Call("allreduce", {"name": "stale", "op": hvd.Sum, "process_set": hvd.global_process_set}))
    first = tickets.start(text.encode(), ARRAYS, [np.ones(3)])
    while not int(tf.raw_ops.QueueSizeV2(handle=first.queue.handle)):
        time.sleep(0.001)
    tickets.give_up(first.number)
    second = tickets.start(text.encode(), ARRAYS, [np.ones(3)])
    assert second.queue is not first.queue
    tf.raw_ops.QueueDequeueV2(handle=second.queue.handle, component_types=tickets.NEWS)
    (result,) = tickets.finish(second.number)
    np.testing.assert_array_equal(result, hvd.size())
    assert tickets._free[-1] is second.queue
    assert int(tf.raw_ops.QueueSizeV2(handle=second.queue.handle)) == 0


@scenario
def a_function_that_is_called_twice_and_traced_anew_on_one_rank() -> None:
    def step(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    with through("compiled"):
        function = tf.function(step)
        for number in range(3):
            assert_close(function(tf.fill([2], float(number))), tf.fill([2], float(number * hvd.size())))
            if hvd.rank() == 0:
                function = tf.function(step)


@scenario
def a_barrier_and_numbers_inside_a_function() -> None:
    def meet() -> Any:
        hvd.barrier()
        numbers = [
            hvd.size_op(),
            hvd.rank_op(),
            hvd.local_rank_op(),
            hvd.local_size_op(),
            hvd.process_set_included_op(),
        ]
        hvd.barrier()
        return numbers

    for way in GRAPHS:
        found = [int(number) for number in way(meet)]
        assert found == [hvd.size(), hvd.rank(), hvd.local_rank(), hvd.local_size(), 1]


@scenario
def joining_inside_a_function() -> None:
    assert int(compiled(hvd.join)) in range(hvd.size())


def test_order(report: Report, name: str) -> None:
    assert report[name] == ""
