"""Tapes, variables and objects: training on ranks is training in one process on the batches of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd
from tests.harness.scenarios import Report, Scenarios
from tests.tensorflow.ways import WAYS, assert_close, by_numpy, compiled, eagerly, through

scenario = Scenarios(ranks=[1, 2, 4])


def data(rank: int) -> tuple[Any, Any]:
    random = np.random.RandomState(rank)
    return tf.constant(random.randn(8, 6), tf.float32), tf.constant(random.randint(0, 3, 8))


def model_of(seed: int) -> tuple[list[Any], Any]:
    """Weights of two layers, and the loss of a batch."""
    random = np.random.RandomState(seed)
    sizes = [(6, 5), (5,), (5, 3), (3,)]
    weights = [tf.Variable(random.randn(*size), dtype=tf.float32) for size in sizes]

    def loss_of(images: Any, labels: Any) -> Any:
        hidden = tf.nn.tanh(images @ weights[0] + weights[1])
        logits = hidden @ weights[2] + weights[3]
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    return weights, loss_of


def trained(tape_of: Any, batch: tuple[Any, Any], way: Any) -> list[Any]:
    """The weights after some steps."""
    weights, loss_of = model_of(seed=1)

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(images, labels)
        gradients = tape_of(tape).gradient(loss, weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.3 * gradient)
        return loss

    for _ in range(5):
        way(step, *batch)
    return weights


@scenario
def training_is_that_of_one_process_on_all_batches() -> None:
    batches = [data(rank) for rank in range(hvd.size())]
    whole = tuple(tf.concat(parts, 0) for parts in zip(*batches, strict=True))
    expected = trained(lambda tape: tape, whole, eagerly)
    options: list[dict[str, Any]] = [
        {},
        dict(groups=2),
        dict(gradient_predivide_factor=4.0),
        dict(op=hvd.Sum),
    ]
    for number, way in enumerate([*WAYS, compiled]):
        own = options[number]

        def scaled(tape: Any, own: Any = own) -> Any:
            distributed = hvd.DistributedGradientTape(tape, **own)
            if own.get("op") != hvd.Sum:
                return distributed
            inner = distributed.gradient
            distributed.gradient = lambda *arguments: [each / hvd.size() for each in inner(*arguments)]
            return distributed

        for weight, wanted in zip(trained(scaled, batches[hvd.rank()], way), expected, strict=True):
            assert_close(weight.read_value(), wanted.read_value(), 1e-5)


def stepped(optimizer: Any, batches: Sequence[tuple[Any, Any]], way: Any) -> list[Any]:
    """The weights after two steps on each batch, in a loop of the user's."""
    weights, loss_of = model_of(seed=1)

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(images, labels)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    for batch in 2 * list(batches):
        way(step, *batch)
    return weights


@scenario
def an_optimizer_takes_the_steps_of_one_process_on_all_batches() -> None:
    batches = [data(rank) for rank in range(hvd.size())]
    whole = tuple(tf.concat(parts, 0) for parts in zip(*batches, strict=True))
    images, labels = batches[hvd.rank()]
    halves = [(images[:4], labels[:4]), (images[4:], labels[4:])]
    first = model_of(seed=1)[0][:2]

    def sgd(rate: float = 0.2) -> Any:
        return keras.optimizers.SGD(rate, momentum=0.9)

    expected = stepped(sgd(), [whole], eagerly)
    rows: list[tuple[Any, Sequence[Any], dict[str, Any]]] = [
        (sgd(), [batches[hvd.rank()]], {}),
        (sgd(0.2 / hvd.size()), [batches[hvd.rank()]], dict(op=hvd.Sum)),
        (sgd(), [batches[hvd.rank()]], dict(gradient_predivide_factor=4.0)),
        (sgd(), [batches[hvd.rank()]], dict(groups=2)),
        (sgd(), [batches[hvd.rank()]], dict(groups=[first])),
        (sgd(), [batches[hvd.rank()]], dict(sparse_as_dense=True, compression=hvd.Compression.none)),
        (sgd(), halves, dict(backward_passes_per_step=2, average_aggregated_gradients=True)),
        (sgd(0.1), halves, dict(backward_passes_per_step=2)),
    ]
    for number, (optimizer, own, options) in enumerate(rows):
        distributed = hvd.DistributedOptimizer(optimizer, **options)
        assert distributed is optimizer
        assert isinstance(distributed, keras.optimizers.SGD)
        for weight, wanted in zip(stepped(distributed, own, WAYS[number % 3]), expected, strict=True):
            assert_close(weight.read_value(), wanted.read_value(), 1e-5)


@scenario
def an_optimizer_of_a_process_set_and_one_outside_of_it() -> None:
    chosen = hvd.add_process_set([0, hvd.size() - 1] if hvd.size() > 2 else [0]) if hvd.size() > 1 else None
    process_set = chosen or hvd.global_process_set
    batches = [data(rank) for rank in range(hvd.size())]
    members = process_set.ranks if process_set.included() else [hvd.rank()]
    whole = tuple(tf.concat(parts, 0) for parts in zip(*(batches[rank] for rank in members), strict=True))
    for way in WAYS:
        expected = stepped(keras.optimizers.SGD(0.2), [whole], eagerly)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.2), process_set=process_set)
        found = stepped(optimizer, [batches[hvd.rank()]], way)
        for weight, wanted in zip(found, expected, strict=True):
            assert_close(weight.read_value(), wanted.read_value(), 1e-5)
    if chosen is not None:
        hvd.remove_process_set(chosen)


@scenario
def an_optimizer_and_the_sparse_gradients_of_an_embedding() -> None:
    expected = np.ones((10, 2), np.float32)
    for rank in range(hvd.size()):
        expected[[rank, 9]] -= 0.5 / hvd.size()
    for way in WAYS:
        for as_dense in (False, True):
            table = tf.Variable(tf.ones((10, 2)))
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), sparse_as_dense=as_dense)

            def step(table: Any = table, optimizer: Any = optimizer) -> None:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.gather(table, [hvd.rank(), 9]))
                optimizer.apply_gradients([(tape.gradient(loss, table), table)])

            way(step)
            assert_close(table.read_value(), expected)


@scenario
def gradients_are_added_up_on_a_rank_and_reduced_every_second_pass() -> None:
    """What Horovod's own optimizers are made of."""
    weights = [tf.Variable(tf.zeros(2)), tf.Variable(0.0), tf.Variable(tf.zeros(3))]
    mean = (hvd.size() + 1) / 2
    for way, averages in zip(WAYS, (True, False, True), strict=True):
        helper = hvd.gradient_aggregation.LocalGradientAggregationHelper(
            2, hvd._make_allreduce_grads_fn("grads", groups=2), True, averages, process_set=hvd.global_process_set
        )
        helper.register_local_var(weights[1])
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(weights)

        def one_pass(helper: Any = helper, optimizer: Any = optimizer) -> Any:
            own = tf.constant(hvd.rank() + 1.0)
            rows = tf.IndexedSlices(tf.reshape(own, [1]), tf.constant([0]), tf.constant([2]))
            gradients = helper.compute_gradients([rows, own, None], weights)
            applied = helper.apply_gradients(lambda: optimizer.iterations.assign_add(10), optimizer)
            return *gradients[:2], applied, tf.constant(gradients[2] is None)

        run = tf.function(one_pass) if way is not eagerly else one_pass
        with through("numpy" if way is by_numpy else "compiled"):
            found = [[each.numpy().tolist() for each in run()] for _ in range(4)]
        own, scale = hvd.rank() + 1.0, 1.0 if averages else 2.0
        first, second = [[own, 0.0], own, False, True], [[mean * scale, 0.0], own * scale / hvd.size(), True, True]
        for one, wanted in zip(found, [first, second, first, second], strict=True):
            assert one == [pytest.approx(wanted[0]), pytest.approx(wanted[1]), *wanted[2:]]
        assert int(optimizer.iterations) == 22
    with pytest.raises(ValueError, match="must be positive, got 0"):
        hvd.LocalGradientAggregationHelper(0, len, True, True)
    eager = hvd.gradient_aggregation.LocalGradientAggregationHelperEager(1, lambda grads, _: grads, False, False)
    with pytest.raises(ValueError, match="pass sparse_as_dense=True"):
        eager.compute_gradients([tf.IndexedSlices(tf.ones([1]), tf.constant([0]), tf.constant([2]))], weights[:1])


@scenario
def sums_are_cleared_also_of_gradients_that_the_last_pass_lacks() -> None:
    weights, one = [tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])], tf.ones(2)

    def doubled(gradients: Any, _: Any) -> Any:
        for _ in tf.range(1):  # which AutoGraph rewrites
            gradients = [2 * gradient for gradient in gradients]
        return gradients

    aggregate = hvd.LocalGradientAggregationHelper(2, doubled, True, False).compute_gradients
    for gradients in ([one, one], [None, one]):
        found = aggregate(gradients, weights)
    assert (found[0], found[1].numpy().tolist()) == (None, [4.0, 4.0])
    of_any_rows = tf.function(lambda first: aggregate([first, one], weights))
    for _ in range(2):
        found = of_any_rows.get_concrete_function(tf.TensorSpec([None]))(one)
    assert [each.numpy().tolist() for each in found] == [[4.0, 4.0], [4.0, 4.0]]


@scenario
def a_tape_stays_what_it_is() -> None:
    weights, loss_of = model_of(seed=1)
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        loss = tape_loss = loss_of(*data(hvd.rank()))
    assert isinstance(tape, tf.GradientTape)
    assert set(tape.watched_variables()[0].shape) == {5, 6}
    one = tape.gradient(loss, weights[0])
    by_name = tape.gradient(loss, {"bias": weights[1], "weight": weights[0]})
    assert_close(by_name["weight"], one)
    assert tape.gradient(loss, [weights[0], tf.Variable(1.0)])[1] is None
    with tf.GradientTape() as plain:
        loss = loss_of(*data(hvd.rank()))
    own = plain.gradient(loss, weights)
    tape.register_local_source(weights[1])
    for local, reduced in (tape.get_local_and_global_gradients(tape_loss, weights),):
        for mine, wanted in zip(local, own, strict=True):
            assert_close(mine, wanted)
        assert_close(reduced[0], one)
        assert_close(reduced[1], own[1] / hvd.size())


@scenario
def compressed_gradients_come_back_in_their_dtype() -> None:
    weights, loss_of = model_of(seed=1)
    for way in WAYS:

        def gradients(images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(images, labels)
            return hvd.DistributedGradientTape(tape, compression=hvd.Compression.fp16).gradient(loss, weights)

        assert [each.dtype for each in way(gradients, *data(0))] == [tf.float32] * 4


@scenario
def gradients_of_an_embedding_stay_sparse_or_become_dense() -> None:
    table = tf.Variable(tf.ones((10, 2)))

    def gradient(as_dense: bool) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [hvd.rank(), 9]))
        return hvd.DistributedGradientTape(tape, sparse_as_dense=as_dense).gradient(loss, [table])[0]

    expected = np.zeros((10, 2), np.float32)
    for rank in range(hvd.size()):
        expected[[rank, 9]] += 1 / hvd.size()
    for way in WAYS:
        sparse, dense = way(lambda: gradient(False)), way(lambda: gradient(True))
        assert isinstance(sparse, tf.IndexedSlices)
        assert len(sparse.indices) == (2 * hvd.size())
        assert_close(tf.convert_to_tensor(sparse), expected)
        assert_close(dense, expected)


@scenario
def slices_are_gathered_and_only_summed_or_averaged() -> None:
    own = tf.IndexedSlices(tf.fill([1, 2], float(hvd.rank())), tf.constant([hvd.rank()]), tf.constant([hvd.size(), 2]))
    expected = [[float(rank)] * 2 for rank in range(hvd.size())]
    for way in WAYS:
        assert_close(tf.convert_to_tensor(way(lambda: hvd.allreduce(own, op=hvd.Sum))), expected)
        dense, sparse = way(lambda: hvd.grouped_allreduce([tf.ones(2), own], op=hvd.Sum, name="both"))
        assert_close(dense, [float(hvd.size())] * 2)
        assert_close(tf.convert_to_tensor(sparse), expected)
    with pytest.raises(NotImplementedError, match="sparse_as_dense"):
        hvd.allreduce(own, op=hvd.Max)
    with pytest.raises(NotImplementedError, match="sparse_as_dense"):
        hvd.grouped_allreduce([own, tf.ones(2, tf.int32)], op=hvd.Adasum)  # which does not take these either


@scenario
def local_layers_keep_their_gradients() -> None:
    local, shared = keras.layers.Dense(1, use_bias=False), keras.layers.Dense(1, use_bias=False)
    x = tf.fill([1, 1], float(hvd.rank() + 1))
    for layer in (local, shared):
        layer.build(x.shape)
        layer.kernel.assign([[1.0]])
    variables = [*local.trainable_weights, *shared.trainable_weights]
    mean = (hvd.size() + 1) / 2
    for scales in (True, False):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(local(x) + shared(x))
        tape = hvd.PartialDistributedGradientTape(tape, local_layers=local, scale_local_gradients=scales)
        found = [gradient.numpy().item() for gradient in tape.gradient(loss, variables)]
        assert found == pytest.approx([(hvd.rank() + 1) / (hvd.size() if scales else 1), mean])


@scenario
def variables_of_the_root_reach_all_ranks() -> None:
    root = hvd.size() - 1
    dtypes = (tf.float32, tf.bfloat16, tf.int64, tf.bool)
    for way in WAYS:
        variables = [tf.Variable(tf.cast(tf.fill([3], hvd.rank() + 1), dtype)) for dtype in dtypes]
        way(lambda of=variables: hvd.broadcast_variables(of, root_rank=root))
        for variable, dtype in zip(variables, dtypes, strict=True):
            assert_close(variable.read_value(), tf.cast(tf.fill([3], root + 1), dtype))
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    before = layer.kernel.numpy()
    assert hvd.broadcast_(layer.weights, root)[0] is layer.weights[0]
    kernels = hvd.allgather(tf.reshape(layer.kernel, [1, -1]))
    assert_close(kernels, tf.tile(kernels[:1], [hvd.size(), 1]))
    assert hvd.rank() != root or (layer.kernel.numpy() == before).all()


@scenario
def variables_that_are_not_there_are_an_error_on_all_ranks() -> None:
    with pytest.raises(ValueError, match=r"call the model once on a batch, or model.build"):
        hvd.broadcast_variables([], root_rank=0)
    if hvd.size() > 1:
        mine = [tf.Variable(1.0)] if hvd.rank() else []
        with pytest.raises(hvd.Mismatch, match="number of tensors in group 'broadcast_variables'"):
            hvd.broadcast_variables(mine, root_rank=0)


@scenario
def objects() -> None:
    assert hvd.broadcast_object({"epoch": hvd.rank()}, root_rank=0) == {"epoch": 0}
    assert hvd.broadcast_object_fn(name="fn")([hvd.rank()]) == [0]
    assert hvd.allgather_object(hvd.rank(), name="ranks") == list(range(hvd.size()))
    for refused in (lambda: hvd.broadcast_object(1), lambda: hvd.allgather_object(1)):
        with pytest.raises(RuntimeError, match=r"outside of tf\.function"):
            compiled(refused)


@scenario
def a_normalization_over_the_batches_of_all_ranks() -> None:
    batches = [
        tf.constant(np.random.RandomState(rank).randn(2 + rank, 4) + 5, tf.float32) for rank in range(hvd.size())
    ]
    whole = tf.concat(batches, 0)
    begin = sum(2 + rank for rank in range(hvd.rank()))
    rows = slice(begin, begin + 2 + hvd.rank())

    def run(layer: Any, batch: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(batch)
            out = layer(batch, training=True)
            loss = tf.reduce_sum(out**3)
        return out, tape.gradient(loss, batch)

    plain = keras.layers.BatchNormalization()
    expected, gradient = run(plain, whole)
    for way in WAYS:
        layer = hvd.SyncBatchNormalization()
        layer.build(whole.shape)
        out, own = way(lambda batch, of=layer: run(of, batch), batches[hvd.rank()])
        assert_close(out, expected[rows], 1e-4)
        assert_close(own, gradient[rows], 1e-3)
        assert_close(tf.convert_to_tensor(layer.moving_variance), tf.convert_to_tensor(plain.moving_variance), 1e-5)
    with pytest.raises(ValueError, match="fused"):
        hvd.SyncBatchNormalization(fused=True)


def test_training(report: Report, name: str) -> None:
    assert report[name] == ""
