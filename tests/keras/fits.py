"""Scenarios of `fit`: with each optimizer it trains as it does in one process with the batches of all ranks."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests.keras.training import KerasScenarios, assert_same, data, network, share, trained_alone, trained_together

scenario = KerasScenarios(ranks=(3,))


def _compare(make: Any, **options: Any) -> None:
    import hvdlite.keras as hvd

    alone = trained_alone(network(), make(), hvd.size(), **options)
    together = trained_together(network(), hvd.DistributedOptimizer(make()), hvd.rank(), hvd.size(), **options)
    assert_same(together, alone)


@scenario
def fit_with_momentum_clipping_and_weight_decay() -> None:
    from keras import optimizers

    _compare(lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=0.05, weight_decay=0.01))


@scenario
def fit_with_adamw_and_a_clipped_global_norm() -> None:
    from keras import optimizers

    _compare(lambda: optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.05))


@scenario
def fit_with_moving_averages() -> None:
    from keras import optimizers

    _compare(lambda: optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3, clipvalue=0.02))


@scenario
def fit_with_gradient_accumulation() -> None:
    from keras import optimizers

    _compare(lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2, clipnorm=0.05))


@scenario
def fit_with_several_steps_an_execution() -> None:
    import keras

    if keras.backend.backend() != "torch":  # which does not have it
        _compare(lambda: keras.optimizers.SGD(0.1, momentum=0.9), steps_per_execution=2)


@scenario
def fit_with_shards_of_a_dataset() -> None:
    import keras

    import hvdlite.keras as hvd

    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    alone = trained_alone(network(), keras.optimizers.Adam(0.01), hvd.size())
    model, dataset = network(), tf.data.Dataset.from_tensor_slices(data())
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    # The same rows in each step as in one process, in another order.
    model.fit(dataset.shard(hvd.size(), hvd.rank()).batch(8), epochs=2, verbose=0, callbacks=callbacks)
    assert_same(model.get_weights(), alone, tolerance=1e-4)


@scenario
def fit_with_torch_compile() -> None:
    """The compiler that dynamo's graphs go to does not matter; most of the time is dynamo's."""
    import keras

    import hvdlite.keras as hvd

    if keras.backend.backend() != "torch":
        return
    import torch

    from tests.harness import dynamo  # noqa: F401 - which makes it faster

    for make in (keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.Lion):
        alone = trained_alone(network(), make(0.01), hvd.size(), epochs=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
            optimizer = hvd.DistributedOptimizer(make(0.01))
            together = trained_together(network(), optimizer, hvd.rank(), hvd.size(), epochs=1, jit_compile=True)
        assert_same(together, alone)


@scenario
def xla_on_tensorflow_is_refused() -> None:
    import keras

    import hvdlite.keras as hvd

    if keras.backend.backend() == "tensorflow":
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        with pytest.raises(ValueError, match=r"pass jit_compile=False to the tf.function, or to model.compile\(\)"):
            trained_together(network(), optimizer, hvd.rank(), hvd.size(), jit_compile=True)


@scenario
def fit_with_sparse_gradients() -> None:
    """Those of an embedding are `tf.IndexedSlices` on TensorFlow, where Keras's Adam takes them unlike dense ones."""
    import keras

    import hvdlite.keras as hvd

    rows = 48
    tokens, targets = np.arange(rows * 3).reshape(rows, 3) % 10, np.ones((rows, 1), "float32")

    def weights_of(optimizer: Any, size: int, rank: int) -> list[Any]:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Embedding(10, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((3,), dtype="int32"), *layers])
        model.compile(optimizer, loss="mse")
        inputs, outputs = (share(each, rank, size) for each in (tokens, targets))
        model.fit(inputs, outputs, batch_size=8 * hvd.size() // size, epochs=2, shuffle=False, verbose=0)
        return list(model.get_weights())

    for make, options in (
        (lambda: keras.optimizers.Adam(0.01), {}),
        (lambda: keras.optimizers.SGD(0.1), {"sparse_as_dense": True}),
        (lambda: keras.optimizers.SGD(0.1), {"gradient_predivide_factor": 2.0}),
    ):
        alone = weights_of(make(), 1, 0)
        assert_same(weights_of(hvd.DistributedOptimizer(make(), **options), hvd.size(), hvd.rank()), alone)


@scenario
def fit_with_a_fixed_loss_scale() -> None:
    from keras import optimizers

    _compare(lambda: optimizers.SGD(0.1, loss_scale_factor=128.0, clipnorm=0.05))


@scenario
def fit_with_a_dynamic_loss_scale() -> None:
    """Given to `DistributedOptimizer`, or put around it by ``compile``."""
    import keras
    from keras import optimizers

    import hvdlite.keras as hvd

    _compare(lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1, clipnorm=0.05), initial_scale=64.0))
    keras.config.set_dtype_policy("mixed_float16")
    try:
        alone = trained_alone(network(), optimizers.SGD(0.1), hvd.size(), epochs=1)
        model = network()
        together = trained_together(
            model, hvd.DistributedOptimizer(optimizers.SGD(0.1)), hvd.rank(), hvd.size(), epochs=1
        )
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(model.optimizer, optimizers.LossScaleOptimizer)
    assert_same(together, alone, tolerance=2e-3)


@scenario
def ranges_of_float8_are_the_same_on_all_ranks() -> None:
    from keras import optimizers

    import hvdlite.keras as hvd

    optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.1))
    model = network(dtype="float8_from_float32")
    trained_together(model, optimizer, hvd.rank(), hvd.size(), epochs=1)
    ranges = [np.asarray(each) for each in model.get_weights()]
    assert len(ranges) > 4
    for each in hvd.allgather_object(ranges):
        assert_same(each, ranges, tolerance=0)


@scenario
def optimizers_of_keras_2_are_wrapped_too() -> None:
    import keras

    import hvdlite.keras as hvd

    if keras.backend.backend() != "tensorflow":
        return
    import tf_keras

    def weights_of(optimizer: Any, size: int, rank: int) -> list[Any]:
        tf_keras.utils.set_random_seed(1)
        dense = tf_keras.layers.Dense
        model = tf_keras.Sequential([dense(8, activation="tanh", input_shape=(4,)), dense(1)])
        model.compile(optimizer, loss="mse")
        inputs, targets = (share(each, rank, size) for each in data())
        model.fit(inputs, targets, batch_size=8 * hvd.size() // size, epochs=2, shuffle=False, verbose=0)
        return list(model.get_weights())

    def adam() -> Any:
        return tf_keras.optimizers.Adam(0.01, weight_decay=0.1, global_clipnorm=0.05)

    optimizer = hvd.DistributedOptimizer(adam())
    assert isinstance(optimizer, tf_keras.optimizers.Adam)
    assert_same(weights_of(optimizer, hvd.size(), hvd.rank()), weights_of(adam(), 1, 0))
    scaled = tf_keras.mixed_precision.LossScaleOptimizer(adam())
    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(4,))])
    inner = tf_keras.optimizers.SGD()
    tf_keras.mixed_precision.LossScaleOptimizer(inner)
    model.compile(hvd.DistributedOptimizer(adam()), loss="mse")
    calls = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    for call, message in (
        (lambda: hvd.DistributedOptimizer(scaled), "loss scaling is not supported with tf_keras"),
        (lambda: hvd.DistributedOptimizer(inner), "loss scaling is not supported with tf_keras"),
        (lambda: tf_keras.mixed_precision.LossScaleOptimizer(optimizer), "loss scaling is not supported with tf_keras"),
        (lambda: model.fit(*data(), callbacks=calls), "for models of Keras 3, and this one is of tf_keras"),
        (lambda: hvd.DistributedOptimizer(adam(), backward_passes_per_step=2), "not supported with tf_keras"),
        (lambda: hvd.DistributedOptimizer(tf_keras.optimizers.legacy.SGD()), "expected an optimizer of Keras 3"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
