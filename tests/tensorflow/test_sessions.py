"""Collectives in graphs of TensorFlow 1 that sessions run, with TensorFlow 2's behaviour and without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd
from hvdlite.tensorflow.operation import pending as tickets
from tests.harness import process_ranks
from tests.harness.forkserver import TENSORFLOW
from tests.harness.patience import PATIENCE_S, until
from tests.harness.scenarios import Report, Scenarios, joined

v1 = tf.compat.v1
scenario = Scenarios(ranks=[1, 2, 3])


@contextmanager
def session(threads: int = 1) -> Iterator[Any]:
    """A session of the default graph, with so many threads for operations, or none but the caller's if negative."""
    options = v1.ConfigProto(inter_op_parallelism_threads=threads, use_per_session_threads=threads > 0)
    with v1.Session(config=options) as made:
        made.run(v1.global_variables_initializer())
        yield made


def raised(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with pytest.raises(tf.errors.OpError) as caught:
        function(*arguments, **options)
    return caught.value


def in_threads(*functions: Callable[[], Any]) -> list[Any]:
    """What the functions return, each in a thread of its own."""
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda number=number, each=each: found.setdefault(number, each()))
        for number, each in enumerate(functions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return [found.get(number) for number in range(len(functions))]


@scenario
def ranks_run_collectives_in_any_order_with_one_thread() -> None:
    for threads in (1, -1, 4):
        with tf.Graph().as_default():
            x = tf.constant(hvd.rank() + 1.0)
            sums = [hvd.allreduce(factor * x, op=hvd.Sum) for factor in range(6)]
            order = [(index * (hvd.rank() + 1)) % 7 - 1 for index in range(1, 7)]  # another one on each of five ranks
            with session(threads) as running:
                for _ in range(3):
                    found = running.run([sums[index] for index in order])
                    total = hvd.size() * (hvd.size() + 1) / 2
                    assert found == [index * total for index in order]


@scenario
def sparse_rows_rank_numbers_and_meetings() -> None:
    with tf.Graph().as_default():
        rows = tf.IndexedSlices(tf.fill([1, 2], hvd.rank() + 1.0), tf.constant([hvd.rank()]), tf.constant([9, 2]))
        summed = hvd.allreduce(rows, op=hvd.Sum)
        numbers = hvd.size_op(), hvd.rank_op(), hvd.local_rank_op(), hvd.local_size_op()
        met, last = hvd.barrier(), hvd.join()
        with session() as running:
            found = running.run(summed)
            assert found.indices.tolist() == list(range(hvd.size()))
            assert found.values[:, 0].tolist() == [rank + 1.0 for rank in range(hvd.size())]
            assert running.run(numbers) == (hvd.size(), hvd.rank(), hvd.rank(), hvd.size())
            assert running.run(met) is None
            assert running.run(last) in range(hvd.size())


@scenario
def process_sets_count_for_themselves() -> None:
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size())] if hvd.size() > 1 else [hvd.global_process_set]
    with tf.Graph().as_default():
        own = [hvd.allreduce(tf.constant(2.0), process_set=sets[hvd.rank()]) for _ in range(hvd.rank())]
        together = hvd.allreduce(tf.constant(hvd.rank() + 0.0), op=hvd.Max)
        included = hvd.process_set_included_op(sets[0].process_set_id)
        with session() as running:
            assert running.run([*own, together]) == [2.0] * hvd.rank() + [hvd.size() - 1.0]
            assert running.run(included) == (hvd.rank() == 0)
    for each in sets:
        hvd.remove_process_set(each)


@scenario
def gradients_that_do_not_need_a_collective_run_it() -> None:
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", initializer=tf.ones(3))
        received = hvd.broadcast(2.0 * weight, root_rank=0)
        (gradient,) = tf.gradients([tf.reduce_sum(received)], [weight])
        stepped = v1.assign_sub(weight, gradient)
        with session() as running:
            expected = 2.0 if hvd.rank() == 0 else 0.0
            assert running.run(gradient).tolist() == [expected] * 3
            assert running.run(stepped).tolist() == [1.0 - expected] * 3


@scenario
def loops_and_branches() -> None:
    with tf.Graph().as_default():

        def add(index: Any, total: Any) -> Any:
            return index + 1, total + hvd.allreduce(tf.cast(index, tf.float32) + 0.0 * total, op=hvd.Sum)

        _, total = tf.while_loop(lambda index, _: index < 5, add, [tf.constant(0), tf.constant(0.0)])
        chosen = tf.cond(total > 0.0, lambda: hvd.allreduce(total), lambda: total - 1.0)
        with session() as running:
            assert running.run([total, chosen]) == [10.0 * hvd.size()] * 2


@scenario
def graphs_and_sessions_in_threads() -> None:
    """Ranks start their threads in different orders."""
    graphs = [tf.Graph(), tf.Graph()]
    sums = []
    for number, graph in enumerate(graphs):
        with graph.as_default():
            sums.append(hvd.allreduce(tf.constant(number + 1.0), op=hvd.Sum))

    def steps(number: int) -> set[float]:
        with graphs[number].as_default(), session() as running:
            return {float(running.run(sums[number])) for _ in range(10)}

    order = [0, 1] if hvd.rank() % 2 else [1, 0]
    found = in_threads(*(lambda number=number: steps(number) for number in order))
    assert found == [{(number + 1.0) * hvd.size()} for number in order]


@scenario
def names_that_come_again_are_numbered() -> None:
    with tf.Graph().as_default():
        names = {0: "again", 10: "again", 20: "again.1"}
        sums = [hvd.allreduce(tf.constant(hvd.rank() + add), name=name, op=hvd.Sum) for add, name in names.items()]
        with session() as running:
            found = running.run(sums if hvd.rank() % 2 else sums[::-1])
            ranks = sum(range(hvd.size()))
            assert sorted(found) == [ranks, ranks + 10 * hvd.size(), ranks + 20 * hvd.size()]


def start_of(graph: Any) -> Any:
    """The node that starts the only collective of a graph."""
    nodes = (each for each in graph.get_operations() if each.type == "PyFunc")
    (found,) = (each for each in nodes if each.get_attr("token") == b"hvdlite_start")
    return found


@scenario
def a_run_that_fails_elsewhere_leaves_the_next_alone() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [])
        total = hvd.allreduce(x, op=hvd.Sum)
        with tf.control_dependencies([start_of(graph)]):
            broken = v1.Assert(x < 0.0, ["broken"])
        with session() as running:
            for step in range(10):
                if hvd.rank() == 0:
                    assert "broken" in str(raised(running.run, [broken, total], {x: 7.0}))
                else:
                    assert running.run(total, {x: 7.0}) == 7.0 * hvd.size()
                assert running.run(total, {x: float(step)}) == step * hvd.size()


@scenario
def runs_that_failed_at_any_moment_cancel_no_later_one() -> None:
    def fail(seconds: Any) -> Any:
        time.sleep(float(seconds))  # the moment
        raise ValueError("broken")

    with tf.Graph().as_default():
        moment = v1.placeholder(tf.float32, [])
        broken = tf.numpy_function(fail, [moment], tf.float32)
        some, others = ([hvd.allreduce(tf.constant(float(each))) for each in range(12)] for _ in range(2))
        met = hvd.barrier()
        with session(4) as running:
            for step in range(25):
                raised(running.run, [broken, *some], {moment: 0.0004 * step})
                running.run(met)
                assert running.run(others) == list(range(12))


class Interrupted(Exception):
    pass


def interrupt(*_: Any) -> None:
    raise Interrupted


@scenario
def a_signal_handler_that_raises_is_heard() -> None:
    if hvd.size() == 1:
        return
    with tf.Graph().as_default():
        total, met = hvd.allreduce(tf.constant(1.0)), hvd.barrier()
        with session(2) as running:
            if hvd.rank() == 0:

                def send() -> None:
                    until(lambda: bool(tickets._tickets))
                    os.kill(os.getpid(), signal.SIGUSR1)
                    running.run(met)

                before = signal.signal(signal.SIGUSR1, interrupt)
                sending = threading.Thread(target=send)
                sending.start()
                with pytest.raises(Interrupted):
                    running.run(total)
                sending.join()
                signal.signal(signal.SIGUSR1, before)
            else:
                running.run(met)
                running.run(total)


def close_when_busy(running: Any) -> None:
    until(lambda: bool(tickets._tickets))
    running.close()


@scenario
def a_session_that_is_closed_or_late_ends_its_collectives() -> None:
    """What is in flight stays so for the other ranks."""
    with tf.Graph().as_default():
        total, met = hvd.allreduce(tf.constant(1.0), op=hvd.Sum), hvd.barrier()
        with session() as running, v1.Session() as other:
            if hvd.rank() == 0 and hvd.size() > 1:
                closing = threading.Thread(target=close_when_busy, args=[other])
                closing.start()
                assert isinstance(raised(other.run, total), tf.errors.CancelledError)
                closing.join()
            running.run(met)
            if hvd.rank() > 0:
                assert running.run(total) == hvd.size()
            if hvd.rank() == 0 and hvd.size() > 1:
                late = raised(running.run, total, options=v1.RunOptions(timeout_in_ms=100))
                assert isinstance(late, tf.errors.DeadlineExceededError)
            running.run(met)
            if hvd.rank() > 0:
                assert running.run(total) == hvd.size()
            assert running.run(total) == hvd.size()


@scenario
def functions_run_in_a_graph_and_not_those_of_eager_execution() -> None:
    function = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    with tf.Graph().as_default():
        called = function(tf.constant(2.0))
        with session() as running:
            assert running.run(called) == 2.0 * hvd.size()
        again = function(tf.constant(3.0))
        with session() as running:
            error = raised(running.run, [called, again])
            assert isinstance(error, tf.errors.InvalidArgumentError)
            assert "calls a tf.function with a collective 2 times" in str(error)
    if not tf.executing_eagerly():
        return
    traced = function.get_concrete_function(tf.TensorSpec([]))
    with tf.Graph().as_default():
        called = traced(tf.constant(1.0))
        with session() as running:
            assert "functions that were traced in eager execution" in str(raised(running.run, called))


@scenario
def errors_have_a_text_and_an_object() -> None:
    with tf.Graph().as_default():
        unequal = hvd.allreduce(tf.zeros(hvd.rank() + 1), name="unequal")
        with session() as running:
            if hvd.size() > 1:
                error = raised(running.run, unequal)
                assert isinstance(error, tf.errors.InvalidArgumentError)
                assert "'unequal'" in str(error)
                assert isinstance(hvd.last_error(), hvd.Mismatch)
            else:
                running.run(unequal)


def test_sessions(report: Report, name: str) -> None:
    assert report[name] == ""


def without_version_2() -> Report:
    v1.disable_v2_behavior()
    return scenario.run()


def test_sessions_without_the_behaviour_of_version_2() -> None:
    outcomes = process_ranks(2, without_version_2, server=TENSORFLOW)
    report = joined([outcome.result() for outcome in outcomes])
    assert not any(report.values()), report


def test_a_graph_loads_without_hvdlite_and_its_collectives_run_with_it(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    hvd.init()
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [2], "x")
        weight = v1.get_variable("weight", initializer=tf.constant([3.0, 4.0]))
        predicted = tf.multiply(weight, x, "predicted")
        tf.identity(hvd.allreduce(predicted, op=hvd.Sum, prescale_factor=2.0), "total")
        with session() as running:
            v1.train.Saver().save(running, path)
    hvd.shutdown()
    loaded = subprocess.run(
        [sys.executable, "-c", LOADS, path], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert loaded.stdout.split() == ["[3.0,", "8.0]", "Unknown", "[6.0,", "16.0]"], loaded.stderr


LOADS = """
import sys
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
saver = v1.train.import_meta_graph(sys.argv[1] + ".meta")
with v1.Session() as session:
    saver.restore(session, sys.argv[1])
    print(session.run("predicted:0", {"x:0": [1.0, 2.0]}).tolist())
    import hvdlite.tensorflow as hvd
    try:
        session.run("total:0", {"x:0": [1.0, 2.0]})
    except tf.errors.OpError as error:
        print("Unknown" if "call hvd.init() first" in str(error) else error)
    hvd.init()
    print(session.run("total:0", {"x:0": [1.0, 2.0]}).tolist())
"""
