"""Training on several ranks is training in one process with the batches of all of them, on each back end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.harness.scenarios import Report
from tests.keras import training
from tests.keras.fits import scenario
from tests.keras.training import (
    assert_same,
    data,
    network,
    raised_by,
    share,
    trained_alone,
    trained_together,
)

BACKENDS = training.BACKENDS


@scenario
def a_gradient_that_is_infinite_on_one_rank_skips_the_step_on_all() -> None:
    import keras
    from keras import optimizers

    import hvdlite.keras as hvd

    for scaled in (
        lambda: hvd.DistributedOptimizer(optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=8.0)),
        lambda: optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(optimizers.SGD(0.1)), initial_scale=8.0),
    ):
        optimizer, variable = scaled(), keras.Variable(np.ones(2, "float32"))
        optimizer.build([variable])
        own = np.full(2, np.inf if hvd.rank() == 1 else 8.0, "float32")
        _apply(optimizer, own, variable)
        assert keras.ops.convert_to_numpy(variable).tolist() == [1.0, 1.0]
        assert float(keras.ops.convert_to_numpy(optimizer.dynamic_scale)) == 4.0
        _apply(optimizer, np.full(2, 4.0 * (hvd.rank() + 1), "float32"), variable)
        assert_same([keras.ops.convert_to_numpy(variable)], [np.full(2, 0.8)])
        assert int(keras.ops.convert_to_numpy(optimizer.iterations)) == 1


def _apply(optimizer: Any, gradient: Any, variable: Any) -> None:
    """One step in the way of the back end's own custom loops."""
    import keras

    if keras.backend.backend() == "torch":
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
        return
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.function(lambda gradient: optimizer.apply([gradient], [variable]))(tf.constant(gradient))
        return
    import jax

    state = [each.value for each in optimizer.variables]
    (value,), state = jax.jit(optimizer.stateless_apply)(state, [jax.numpy.asarray(gradient)], [variable.value])
    variable.assign(value)
    for each, new in zip(optimizer.variables, state, strict=True):
        each.assign(new)


@scenario
def variables_that_are_overwritten_take_the_greatest_of_all_ranks() -> None:
    import keras

    import hvdlite.keras as hvd

    variable = keras.Variable(np.zeros(2, "float32"))
    variable.overwrite_with_gradient = True
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))
    optimizer.build([variable])
    _apply(optimizer, np.array([hvd.rank(), -hvd.rank()], "float32"), variable)
    assert keras.ops.convert_to_numpy(variable).tolist() == [hvd.size() - 1, 0]


@scenario
def loss_scaling_is_changed_for_distributed_optimizers_only() -> None:
    import keras

    import hvdlite.keras as hvd

    variable = keras.Variable(np.ones(2, "float32"))
    bare = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1.0)
    bare.build([variable])
    before = _batches()
    _apply(bare, np.full(2, float(hvd.rank() or np.inf), "float32"), variable)
    assert _batches() == before
    assert int(keras.ops.convert_to_numpy(bare.iterations)) == (hvd.rank() > 0)


@scenario
def a_custom_loop() -> None:
    import keras

    import hvdlite.keras as hvd

    variable = keras.Variable(np.zeros(3, "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))
    optimizer.build([variable])
    for _ in range(3):
        _apply(optimizer, np.arange(3, dtype="float32") * hvd.rank(), variable)
    assert_same([keras.ops.convert_to_numpy(variable)], [-1.5 * np.arange(3) * (hvd.size() - 1) / 2])


@scenario
def passes_are_summed_or_averaged_on_their_rank_and_reduced_once() -> None:
    import keras

    import hvdlite.keras as hvd

    for averages, expected in ((False, -3.0), (True, -1.5)):
        variable = keras.Variable(np.zeros(1, "float32"))
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0),
            op=hvd.Sum,
            backward_passes_per_step=2,
            average_aggregated_gradients=averages,
        )
        optimizer.build([variable])
        before = _batches()
        for gradient in (1.0, 2.0):
            assert keras.ops.convert_to_numpy(variable).tolist() == [0.0]
            _apply(optimizer, np.full(1, gradient, "float32"), variable)
        assert keras.ops.convert_to_numpy(variable).tolist() == [expected * hvd.size()]
        assert _batches() - before == 1


@scenario
def all_gradients_of_a_step_travel_in_one_batch() -> None:
    from keras import optimizers

    import hvdlite.keras as hvd

    before = _batches()
    trained_together(network(), hvd.DistributedOptimizer(optimizers.Adam()), hvd.rank(), hvd.size())
    assert _batches() - before == 2 * 4  # two epochs of four steps


def _batches() -> int:
    """The batches that have run on this rank."""
    from hvdlite.session import current

    return int(current().everyone.statistics().batches)


@scenario
def two_of_three_ranks_train_in_a_process_set() -> None:
    from keras import optimizers

    import hvdlite.keras as hvd

    pair = hvd.add_process_set([0, 1])
    if hvd.rank() < 2:
        alone = trained_alone(network(), optimizers.Adam(0.01), 2)
        optimizer = hvd.DistributedOptimizer(optimizers.Adam(0.01), process_set=pair)
        broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0, process_set=pair)
        model = network(seed=1 + hvd.rank())
        assert_same(trained_together(model, optimizer, hvd.rank(), 2, callbacks=[broadcast]), alone)
    else:  # outside of the set it steps alone
        alone = trained_alone(network(), optimizers.Adam(0.01), 1)
        optimizer = hvd.DistributedOptimizer(optimizers.Adam(0.01), process_set=pair)
        assert_same(trained_together(network(), optimizer, 0, 1), alone)
    hvd.barrier()
    assert hvd.remove_process_set(pair)


@scenario
def compression_and_predivision_change_little() -> None:
    from keras import optimizers

    import hvdlite.keras as hvd

    alone = trained_alone(network(), optimizers.SGD(0.1), hvd.size())
    for options in (
        dict(compression=hvd.Compression.bf16),
        dict(compression=hvd.Compression.fp16, gradient_predivide_factor=3.0),
    ):
        optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.1), **options)
        assert_same(trained_together(network(), optimizer, hvd.rank(), hvd.size()), alone, tolerance=5e-3)


@scenario
def local_layers_keep_their_gradients() -> None:
    import keras

    import hvdlite.keras as hvd

    model = network(seed=1)
    before = model.layers[1].get_weights()
    inputs, targets = (share(each, hvd.rank(), hvd.size()) for each in data())
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1), local_layers=model.layers[1], scale_local_gradients=False
    )
    model.compile(optimizer, loss="mse")
    model.fit(inputs[:8], targets[:8], batch_size=8, verbose=0)
    other = network(seed=1)
    other.compile(keras.optimizers.SGD(0.1), loss="mse")
    other.fit(inputs[:8], targets[:8], batch_size=8, verbose=0)
    assert_same(model.layers[1].get_weights(), other.layers[1].get_weights())
    assert not np.allclose(model.layers[1].get_weights()[0], before[0])
    kernels = hvd.allgather(model.layers[0].get_weights()[0])
    assert_same(np.split(kernels, hvd.size()), [kernels[:4]] * hvd.size())


@scenario
def ranks_that_disagree_in_the_middle_of_fit_say_so_and_may_go_on() -> None:
    from keras import optimizers

    import hvdlite.keras as hvd

    def fit(width: int) -> list[Any]:
        optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.1), name="disagreeing")
        return trained_together(network(width=width), optimizer, hvd.rank(), hvd.size(), epochs=1)

    error, text = raised_by(lambda: fit(9 if hvd.rank() == 1 else 8), hvd.Mismatch)
    assert str(error).startswith("ranks disagree about the shape of tensor 'gradients.disagreeing")
    assert "ranks 0, 2 have [4, 8]; rank 1 has [4, 9]" in str(error)
    assert str(error).endswith("/kernel.")  # of the variable that it is the gradient of
    assert text.count(str(error)) == 1
    fit(8)


@scenario
def a_gradient_that_is_missing_is_named_where_only_some_ranks_miss_it() -> None:
    import keras

    import hvdlite.keras as hvd

    variables = [keras.Variable(np.zeros(2, "float32"), name=name) for name in ("first", "second", "third")]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), name="missing")
    optimizer.build(variables)

    def apply(*missing: str) -> None:
        gradient = keras.ops.ones(2) * hvd.rank()
        optimizer.apply([None if variable.name in missing else gradient for variable in variables], variables)

    mean = (hvd.size() - 1) / 2
    apply("second")
    assert [variable.numpy().tolist() for variable in variables] == [[-mean] * 2, [0.0] * 2, [-mean] * 2]
    error, text = raised_by(lambda: apply("second" if hvd.rank() == 1 else ""), hvd.Mismatch)
    assert "'gradients.missing[1]': ranks 0, 2 have [2]; rank 1 has [0]." in str(error)
    assert str(error).endswith("That is the gradient of second; where it has the shape [0], it is None.")
    assert text.count(str(error)) == 1
    apply("first", "second")
    assert [variable.numpy().tolist() for variable in variables] == [[-mean] * 2, [0.0] * 2, [-2 * mean] * 2]


@scenario
def a_gradient_that_is_missing_is_named_in_the_second_of_two_passes() -> None:
    import keras

    import hvdlite.keras as hvd

    variables = [keras.Variable(np.zeros(2, "float32"), name=name) for name in ("first", "second")]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), name="passes", backward_passes_per_step=2)
    optimizer.build(variables)
    gradient = keras.ops.ones(2) * hvd.rank()
    optimizer.apply([None if hvd.rank() == 1 else gradient, gradient], variables)
    error, text = raised_by(
        lambda: optimizer.apply([None if hvd.rank() == 1 else gradient, gradient], variables), hvd.Mismatch
    )
    assert "ranks 0, 2 have [2]; rank 1 has [0]." in str(error)
    assert str(error) in text


@scenario
def gradients_find_their_variables_however_they_are_listed() -> None:
    import keras

    import hvdlite.keras as hvd

    def trained(apply: Callable[[Any, Any, list[Any]], Any], kind: type = keras.optimizers.SGD) -> list[list[float]]:
        variables = [keras.Variable(np.zeros(1, "float32")) for _ in range(2)]
        variables.append(keras.Variable(np.zeros(1, "uint32"), trainable=False))  # which has no gradient
        optimizer = hvd.DistributedOptimizer(kind(1.0))
        optimizer.build(variables)
        apply(optimizer, keras.ops.ones(1) * (hvd.rank() + 1.0), variables)
        return [variable.numpy().tolist() for variable in variables[:2]]

    class Clipping(keras.optimizers.SGD):  # type: ignore[misc]
        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            for gradient, variable in zip(self._clip_gradients(list(grads)), trainable_variables, strict=True):
                variable.assign_sub(gradient)

    mean = (hvd.size() + 1) / 2
    once = [[-mean], [-mean]]
    assert trained(lambda optimizer, gradient, each: optimizer.apply([gradient] * 2, each[1::-1])) == once
    twice = trained(lambda optimizer, gradient, each: optimizer.apply([gradient] * 3, [each[0], each[1], each[0]]))
    assert twice == [[-2 * mean], [-mean]]
    assert trained(lambda optimizer, gradient, each: optimizer.apply([gradient] * 2, each[:2]), Clipping) == once
    if keras.backend.backend() == "tensorflow":  # the variables of TensorFlow are the same ones to Keras there
        watched = lambda optimizer, gradient, each: optimizer.apply([gradient] * 2, [one.value for one in each[:2]])  # noqa: E731
        assert trained(watched) == once


@scenario
def two_hundred_steps_leave_nothing_behind() -> None:
    import psutil
    from keras import optimizers

    import hvdlite.keras as hvd
    from hvdlite.session import current

    model, process, group = network(), psutil.Process(), current().everyone
    model.compile(hvd.DistributedOptimizer(optimizers.SGD(0.01)), loss="mse")
    inputs, targets = data(1600)
    counts = []
    for steps in (20, 200):
        model.fit(inputs[: 8 * steps], targets[: 8 * steps], batch_size=8, verbose=0)
        counts.append((process.num_fds(), process.num_threads(), len(group.known)))
    # A pool of the back end may still have grown by a thread; what a step leaves would be there 180 times.
    assert all(after < before + 20 for before, after in zip(*counts, strict=True)), counts


@scenario
def wrong_arguments_are_refused() -> None:
    import keras
    from keras import optimizers

    import hvdlite.keras as hvd

    sgd = optimizers.SGD
    for call, message in (
        (lambda: hvd.DistributedOptimizer("sgd"), "expected a Keras optimizer, got 'sgd'"),
        (lambda: hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd())), "is a DistributedOptimizer already"),
        (lambda: hvd.DistributedOptimizer(sgd(), op=hvd.Adasum), "op Adasum is not supported by Keras optimizers"),
        (lambda: hvd.DistributedOptimizer(sgd(), op=hvd.Sum, gradient_predivide_factor=2.0), "needs op=hvd.Average"),
        (lambda: hvd.DistributedOptimizer(sgd(), backward_passes_per_step=0), "must be positive, got 0"),
        (lambda: hvd.DistributedOptimizer(sgd(), groups=0), "groups must be a positive number"),
        (
            lambda: hvd.DistributedOptimizer(sgd(gradient_accumulation_steps=3), backward_passes_per_step=2),
            "gradient_accumulation_steps is 3",
        ),
        (lambda: hvd.PartialDistributedOptimizer(sgd(), local_layers=["dense"]), "must be Keras layers"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(RuntimeError, match="Keras 3 has no global variables"):
        hvd.broadcast_global_variables(0)
    if keras.backend.backend() == "jax":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        try:
            with pytest.raises(ValueError, match="a keras.distribution is set, which reduces gradients by itself"):
                hvd.DistributedOptimizer(sgd())
        finally:
            keras.distribution.set_distribution(None)


@scenario
def values_are_reduced_outside_of_a_model() -> None:
    import keras

    import hvdlite.keras as hvd

    rank, size = hvd.rank(), hvd.size()
    assert hvd.allreduce(1.0 + rank, op=hvd.Sum) == size * (size + 1) / 2
    own = keras.ops.convert_to_tensor(np.full((1, 2), rank, "float32"))
    assert hvd.allgather(own).tolist() == [[float(other)] * 2 for other in range(size)]
    assert hvd.broadcast(own, root_rank=1).tolist() == [[1.0, 1.0]]
    assert hvd.reducescatter(np.ones((size, 2), "float32"), op=hvd.Sum).tolist() == [[size, size]]
    variables = [keras.Variable(np.full(3, rank, "float32")), keras.Variable(rank, dtype="int32", trainable=False)]
    hvd.broadcast_variables(variables, root_rank=2)
    assert [keras.ops.convert_to_numpy(each).tolist() for each in variables] == [[2.0] * 3, 2]
    other = keras.Variable(np.zeros(2 + (rank == 1)), name="other")
    sentence = r"tensor 'broadcast_variables\[1\]': ranks 0, 2 have \[2\]; rank 1 has \[3\].* That is other\.$"
    with pytest.raises(hvd.Mismatch, match=sentence):
        hvd.broadcast_variables([variables[0], other], root_rank=0)
    with pytest.raises(hvd.Mismatch, match="number of tensors in group 'broadcast_variables': ranks 0, 2 have 2; rank"):
        hvd.broadcast_variables([] if rank == 1 else variables, root_rank=0)
    with pytest.raises(ValueError, match="there are no variables: call the model once on a batch"):
        hvd.broadcast_variables([], root_rank=0)


def test_scenario(report: Report, name: str) -> None:
    assert report[name] == ""
