"""Training in sessions of TensorFlow 1: on ranks it is that of one process on the batches of all."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd
from tests.harness import process_ranks
from tests.harness.forkserver import TENSORFLOW
from tests.harness.patience import NEVER_SILENT
from tests.harness.scenarios import Report, Scenarios

scenario = Scenarios(ranks=[2, 3])
v1 = tf.compat.v1


@contextmanager
def without_v2() -> Iterator[None]:
    """As after `disable_v2_behavior`: variables are references, and control flow is that of TensorFlow 1."""
    v1.disable_v2_behavior()
    try:
        yield
    finally:
        v1.reset_default_graph()  # once it is used, TensorFlow does not go back
        v1.enable_v2_behavior()


@contextmanager
def with_v2() -> Iterator[None]:
    yield


MODES: Sequence[Callable[[], Any]] = (with_v2, without_v2)


@contextmanager
def new_session() -> Iterator[Any]:
    """A session on a new graph, which is the default one."""
    config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        yield session


def data(rank: int) -> tuple[Any, Any]:
    random = np.random.RandomState(rank)
    return random.randn(8, 6).astype(np.float32), random.randn(8, 1).astype(np.float32)


def whole() -> tuple[Any, Any]:
    images, targets = zip(*map(data, range(hvd.size())), strict=True)
    return np.concatenate(images), np.concatenate(targets)


class Model:
    """A layer in the default graph, its loss, and what a batch is fed to."""

    def __init__(self, seed: int = 3) -> None:
        start = v1.random_normal_initializer(seed=seed)
        self.kernel = v1.get_variable("kernel", [6, 1], initializer=start)
        self.bias = v1.get_variable("bias", [1], initializer=v1.zeros_initializer())
        self.weights = [self.kernel, self.bias]
        self.batch = v1.placeholder(tf.float32, [None, 6]), v1.placeholder(tf.float32, [None, 1])
        images, targets = self.batch
        self.loss = tf.reduce_mean(tf.square(tf.matmul(images, self.kernel) + self.bias - targets))

    def fed(self, batch: tuple[Any, Any]) -> dict[Any, Any]:
        return dict(zip(self.batch, batch, strict=True))


def trained(optimizer: Any, batches: Sequence[tuple[Any, Any]], times: int = 2) -> list[Any]:
    """The weights after so many steps on each batch."""
    with new_session() as session:
        model = Model()
        step = optimizer.minimize(model.loss)
        session.run(v1.global_variables_initializer())
        for batch in times * list(batches):
            session.run(step, model.fed(batch))
        found: list[Any] = session.run(model.weights)
        return found


def assert_same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-5)


@scenario
def an_optimizer_takes_the_steps_of_one_process_on_all_batches() -> None:
    images, targets = own = data(hvd.rank())
    halves = [(images[:4], targets[:4]), (images[4:], targets[4:])]
    sgd, adam, momentum = v1.train.GradientDescentOptimizer, v1.train.AdamOptimizer, v1.train.MomentumOptimizer
    none = hvd.compression.Compression.none
    rows: list[tuple[Callable[..., Any], Sequence[tuple[Any, Any]], dict[str, Any]]] = [
        (lambda: sgd(0.2), [own], {}),
        (lambda: adam(0.1), [own], dict(name="mine", use_locking=True, compression=none, op=hvd.Average)),
        (lambda: momentum(0.1, 0.9), [own], dict(groups=2)),
        (lambda: momentum(0.1, 0.9), [own], dict(num_groups=1, gradient_predivide_factor=2.0)),
        (lambda: adam(0.1), halves, dict(backward_passes_per_step=2, average_aggregated_gradients=True)),
    ]
    for mode in MODES:
        with mode():
            for optimizer_of, batches, options in rows:
                expected = trained(optimizer_of(), [whole()])
                found = trained(hvd.DistributedOptimizer(optimizer_of(), **options), batches)
                assert_same(found, expected)


@scenario
def an_optimizer_is_one_of_tensorflow_with_the_state_of_its_own() -> None:
    for mode in MODES:
        with mode(), new_session() as session:
            model, plain = Model(), v1.train.AdamOptimizer(0.1)
            optimizer = hvd.DistributedOptimizer(plain)
            assert isinstance(optimizer, v1.train.AdamOptimizer)
            assert type(optimizer).__name__ == "DistributedAdamOptimizer"
            train = optimizer.minimize(model.loss, name="train")
            assert (train.name, train.type) == ("train", "NoOp")
            names = "kernel bias beta1_power beta2_power kernel/Adam kernel/Adam_1 bias/Adam bias/Adam_1".split()
            assert [each.op.name for each in v1.global_variables()] == names
            assert v1.local_variables() == []
            assert (optimizer.get_slot_names(), optimizer.get_name()) == (["m", "v"], "Adam")
            assert optimizer._optimizer is plain
            assert optimizer.get_slot(model.bias, "m") is plain.get_slot(model.bias, "m")
            assert {each.op.name for each in optimizer.variables()} == set(names[2:])
            with pytest.raises(ValueError, match="is a DistributedOptimizer already"):
                hvd.DistributedOptimizer(optimizer)
            session.run(v1.global_variables_initializer())


@scenario
def a_checkpoint_goes_from_one_process_to_ranks_and_back() -> None:
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None)

    def steps(is_alone: bool, begin: str, end: str) -> Any:
        with new_session() as session:
            model, optimizer = Model(), v1.train.AdamOptimizer(0.1)
            if not is_alone:
                optimizer = hvd.DistributedOptimizer(optimizer)
            step = optimizer.minimize(model.loss, v1.train.get_or_create_global_step())
            saver = v1.train.Saver() if hvd.rank() == 0 else None  # so the graphs of ranks differ
            session.run(v1.global_variables_initializer())
            if begin and saver is not None:
                saver.restore(session, f"{folder}/{begin}")
            if not is_alone:
                session.run(hvd.broadcast_global_variables(0))
            for _ in range(2):
                session.run(step, model.fed(whole() if is_alone else data(hvd.rank())))
            if saver is not None:
                saver.save(session, f"{folder}/{end}")
            return session.run([*model.weights, v1.train.get_global_step()])

    for mode in MODES:
        with mode():
            if hvd.rank() == 0:
                steps(True, "", "first")
                alone = steps(True, "first", "alone")
            distributed = steps(False, "first", "ranks")
            assert distributed[-1] == 4
            if hvd.rank() == 0:
                assert_same(distributed, alone)
                assert_same(steps(True, "ranks", "end"), steps(True, "alone", "end"))


@scenario
def gradients_that_are_none_sparse_or_local() -> None:
    size, rank = hvd.size(), hvd.rank()
    for mode in MODES:
        for as_dense in (False, True):
            with mode(), new_session() as session:
                table, local, unused = (v1.get_variable(name, initializer=tf.ones([size, 2])) for name in "abc")
                loss = tf.reduce_sum(tf.gather(table, [rank])) + (rank + 1) * tf.reduce_sum(local)
                optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), sparse_as_dense=as_dense)
                optimizer.register_local_var(local)
                pairs = optimizer.compute_gradients(loss, [table, local, unused])
                assert isinstance(pairs[0][0], tf.IndexedSlices) is not as_dense
                assert pairs[2][0] is None
                step = optimizer.apply_gradients(pairs)
                session.run(v1.global_variables_initializer())
                session.run(step)
                found = session.run([table, local, unused])
                assert_same(found, [np.full((size, 2), value) for value in (1 - 1 / size, 1 - (rank + 1) / size, 1)])
    with new_session() as session:
        mine, theirs = (v1.get_variable(name, initializer=1.0) for name in ("mine", "theirs"))
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
        step = optimizer.minimize(mine if rank else theirs + mine)
        session.run(v1.global_variables_initializer())
        with pytest.raises(tf.errors.OpError, match=r"That is the gradient of (\w+/)?theirs:0; where .* it is None"):
            session.run(step)


@scenario
def an_optimizer_of_a_process_set_and_one_outside_of_it() -> None:
    ranks = [0, hvd.size() - 1] if hvd.size() > 2 else [0]
    chosen = hvd.add_process_set(ranks)
    members = ranks if chosen.included() else [hvd.rank()]
    for passes in (1, 2):
        with new_session() as session:
            weight = v1.get_variable("weight", initializer=0.0)
            sgd = v1.train.GradientDescentOptimizer(1.0)
            optimizer = hvd.DistributedOptimizer(sgd, process_set=chosen, backward_passes_per_step=passes)
            step = optimizer.minimize(-weight * hvd.rank())
            session.run(v1.global_variables_initializer())
            for _ in range(2):
                session.run(step)
            assert session.run(weight) == pytest.approx(2 * np.mean(members))
    hvd.remove_process_set(chosen)


@scenario
def adasum_combines_the_steps_of_ranks() -> None:
    own = hvd.rank() + 1.0
    combined = hvd.allreduce(tf.constant([-own, 0.5]), op=hvd.Adasum).numpy()
    for mode in MODES:
        for passes in (1, 2):
            with mode(), new_session() as session:
                weights = v1.get_variable("weights", initializer=[4.0, 4.0])
                sgd = v1.train.GradientDescentOptimizer(1 / passes)
                optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Adasum, backward_passes_per_step=passes)
                step = optimizer.minimize(own * weights[0] - 0.5 * weights[1])
                session.run(v1.global_variables_initializer())
                for _ in range(passes):
                    session.run(step)
                assert_same([session.run(weights)], [4 + combined])
    with pytest.raises(ValueError, match="average_aggregated_gradients"):
        hvd.DistributedOptimizer(sgd, op=hvd.Adasum, average_aggregated_gradients=True)


@scenario
def passes_are_summed_and_counted_once_each() -> None:
    mean = (hvd.size() + 1) / 2
    for mode in MODES:
        with mode(), new_session() as session:
            weight, other = v1.get_variable("weight", initializer=0.0), v1.get_variable("other", initializer=0.0)
            rows = v1.get_variable("rows", initializer=[0.0, 0.0])
            count = v1.train.get_or_create_global_step()
            optimizer = hvd.DistributedOptimizer(
                v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2, sparse_as_dense=True
            )
            optimizer.register_local_var(other)
            own = -1.0 - hvd.rank()
            loss = own * (weight + other + tf.reduce_sum(tf.gather(rows, [1])))
            step = optimizer.minimize(loss, count)
            clipped = optimizer.compute_gradients(2 * own * weight, [weight])
            second = optimizer.apply_gradients([(tf.clip_by_value(g, -100.0, 100.0), v) for g, v in clipped])
            assert [each.op.name for each in v1.global_variables()] == ["weight", "other", "rows", "global_step"]
            assert all(each.name.startswith("hvdlite_sum") for each in v1.local_variables())
            session.run(v1.global_variables_initializer())
            for passed in range(1, 7):
                session.run(step)
                steps = passed // 2
                found = session.run([weight, other, rows, count])
                assert_same(found, [2 * steps * mean, -2 * steps * own / hvd.size(), [0, 2 * steps * mean], passed])
            for _ in range(2):
                session.run([second])
            assert session.run(weight) == pytest.approx(10 * mean)
    sparse = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
    with new_session(), pytest.raises(ValueError, match="sparse_as_dense=True"):
        sparse.minimize(tf.reduce_sum(tf.gather(v1.get_variable("rows", initializer=[0.0]), [0])))
    with pytest.raises(ValueError, match="backward_passes_per_step must be positive, got 0"):
        hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=0)


@scenario
def what_comes_before_and_after_a_step() -> None:
    for mode in MODES:
        with mode(), new_session() as session:
            model, seen = Model(), v1.get_variable("seen", initializer=0.0, trainable=False)
            update = v1.assign_add(seen, 1.0)
            optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))
            with tf.control_dependencies([update]):
                step = optimizer.minimize(
                    model.loss,
                    v1.train.get_or_create_global_step(),
                    model.weights,
                    aggregation_method=tf.AggregationMethod.ADD_N,
                    colocate_gradients_with_ops=True,
                    grad_loss=tf.constant(2.0),
                )
            session.run(v1.global_variables_initializer())
            session.run(step, model.fed(data(hvd.rank())))
            found, counts = session.run([model.weights, [seen, v1.train.get_global_step()]])
            assert counts == [1, 1]
        with mode():
            expected = trained(v1.train.GradientDescentOptimizer(0.2), [whole()], times=1)
        assert_same(found, expected)


@scenario
def several_optimizers_in_a_graph_and_one_for_several_losses() -> None:
    mean = (hvd.size() + 1) / 2
    for mode in MODES:
        shared = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
        for _ in range(2):  # the graph is built again
            with mode(), new_session() as session:
                first, second = (v1.get_variable(name, initializer=0.0) for name in ("first", "second"))
                if hvd.rank() == 0:
                    v1.train.Saver()
                own = -1.0 - hvd.rank()
                again = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), groups=2)
                steps = [
                    shared.minimize(own * first + own * second),
                    again.minimize(own * first + own * second),
                    shared.minimize(own * 10 * first, var_list=[first]),
                ]
                session.run(v1.global_variables_initializer())
                for _ in range(3):  # and what is ready first differs
                    session.run(steps if hvd.rank() else steps[::-1])
                assert session.run([first, second]) == pytest.approx([36 * mean, 6 * mean])


@scenario
def an_optimizer_in_eager_execution_and_in_functions() -> None:
    mean = (hvd.size() + 1) / 2
    for options in ({}, dict(backward_passes_per_step=2)):
        for way in (lambda function: function, tf.function):
            weight = tf.Variable(0.0)
            optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), **options)

            def step(weight: Any = weight, optimizer: Any = optimizer) -> None:
                optimizer.minimize(lambda: (-1.0 - hvd.rank()) * weight, var_list=[weight])

            taken = way(step)
            for _ in range(4):
                taken()
            assert weight.numpy() == pytest.approx(4 * mean)


@scenario
def mixed_precision() -> None:
    for mode in MODES:
        with mode(), new_session() as session:
            model = Model()
            optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))
            scaled = v1.train.experimental.enable_mixed_precision_graph_rewrite(optimizer, loss_scale=8.0)
            step = scaled.minimize(model.loss)
            session.run(v1.global_variables_initializer())
            session.run(step, model.fed(data(hvd.rank())))
            found = session.run(model.weights)
            v1.train.experimental.disable_mixed_precision_graph_rewrite()
        with mode():
            assert_same(found, trained(v1.train.GradientDescentOptimizer(0.1), [whole()], times=1))


@scenario
def variables_are_those_of_the_root() -> None:
    dtypes = [tf.float64, tf.bfloat16, tf.int64, tf.bool, tf.complex64, tf.uint8]
    for mode in MODES:
        for is_resource in (False, True):
            with mode(), new_session() as session:
                variables = [
                    v1.get_variable(dtype.name, initializer=tf.cast([hvd.rank(), 1], dtype), use_resource=is_resource)
                    for dtype in dtypes
                ]
                step = v1.train.get_or_create_global_step()
                first = hvd.broadcast_global_variables(hvd.size() - 1)
                later = v1.get_variable("later", initializer=hvd.rank(), use_resource=is_resource)
                assert isinstance(first, tf.Operation)
                session.run(v1.global_variables_initializer())
                session.run(step.assign(hvd.rank() + 7))
                session.run(first)
                for found, dtype in zip(session.run(variables), dtypes, strict=True):
                    assert found.tolist() == np.array([hvd.size() - 1, 1]).astype(dtype.as_numpy_dtype).tolist()
                assert session.run([step, later]) == [hvd.size() + 6, hvd.rank()]
                for broadcast in (hvd.broadcast_variables, hvd.broadcast_):
                    session.run(later.assign(hvd.rank()))
                    session.run(broadcast([later], 1))
                    assert session.run(later) == 1
                session.run(hvd.broadcast_variables([], 0))
                with pytest.raises(ValueError, match=r"variable 'text:0' has text"):
                    hvd.broadcast_variables([v1.get_variable("text", initializer="a", use_resource=is_resource)], 0)
    with pytest.raises(RuntimeError, match="no global variables in TensorFlow 2"):
        hvd.broadcast_global_variables(0)


@scenario
def a_monitored_session_begins_with_the_variables_of_the_root() -> None:
    folder = Path(hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None))
    for number, mode in enumerate(MODES):
        for last in (3, 5):  # the second time from a checkpoint
            with mode(), tf.Graph().as_default():
                model = Model(seed=hvd.rank())
                count = v1.train.get_or_create_global_step()
                optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.1, 0.9))
                step = optimizer.minimize(model.loss, count)
                hooks = [hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=last)]
                assert isinstance(hooks[0], v1.train.SessionRunHook)
                steps, saved = 0, str(folder / str(number)) if hvd.rank() == 0 else None
                with v1.train.MonitoredTrainingSession(checkpoint_dir=saved, hooks=hooks) as session:
                    while not session.should_stop():
                        found = session.run([step, *model.weights, count], model.fed(data(hvd.rank())))[1:]
                        steps += 1
                assert steps == (3 if last == 3 else 2)
                for one, other in zip(found, hvd.broadcast_object(found), strict=True):
                    np.testing.assert_array_equal(one, other)


@scenario
def objects_need_no_session() -> None:
    for mode in MODES:
        with mode(), new_session() as session:
            send = hvd.broadcast_object_fn(root_rank=1, session=session)
            before = len(session.graph.get_operations())
            for number in range(3):
                assert send([hvd.rank(), number]) == [1, number]
            assert hvd.broadcast_object(hvd.rank(), 1, session=session, name="own") == 1
            assert hvd.allgather_object(hvd.rank(), session=session) == list(range(hvd.size()))
            assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
            assert len(session.graph.get_operations()) == before


def train_until_lost() -> str:
    hvd.init()
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", initializer=1.0)
        step = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1)).minimize(weight)
        with v1.train.MonitoredSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session:
            session.run(step)
            if hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            with pytest.raises(tf.errors.OpError, match="PeerLost: rank 1 .*was lost"):
                session.run(step)
    return type(hvd.last_error()).__name__


def test_a_monitored_session_does_not_begin_again_when_a_rank_is_lost() -> None:
    """It would without end for an `AbortedError`."""
    outcomes = process_ranks(2, train_until_lost, server=TENSORFLOW, environ=NEVER_SILENT)
    assert outcomes[0].result() == "PeerLost"


def test_session_training(report: Report, name: str) -> None:
    assert report[name] == ""
