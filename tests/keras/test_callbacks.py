"""What users pass to `fit`, and what they do with a model afterwards, on each back end."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harness.scenarios import Report
from tests.keras import training
from tests.keras.training import (
    KerasScenarios,
    assert_same,
    data,
    network,
    share,
    trained_alone,
    trained_together,
)

BACKENDS = training.BACKENDS
scenario = KerasScenarios(ranks=(2,))

_OPENS = """
import sys
sys.modules["hvdlite"] = None  # as where it is not installed
import keras
model = keras.models.load_model(sys.argv[1])
print(type(model.optimizer).__name__, int(model.optimizer.iterations))
"""


def _folder() -> Path:
    """A new folder that all ranks have."""
    import hvdlite.keras as hvd

    return Path(hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None))


@scenario
def the_state_of_rank_0_begins() -> None:
    from keras import optimizers

    import hvdlite.keras as hvd

    alone = trained_alone(network(), optimizers.Adam(0.01), hvd.size())
    model, optimizer = network(seed=1 + hvd.rank()), hvd.DistributedOptimizer(optimizers.Adam(0.01))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    assert_same(trained_together(model, optimizer, hvd.rank(), hvd.size(), callbacks=callbacks), alone)


@scenario
def a_model_that_is_built_in_its_first_step_is_broadcast_after_it() -> None:
    import keras

    import hvdlite.keras as hvd

    class Late(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

    for builders in ([], [1]):  # ranks that have built theirs before
        keras.utils.set_random_seed(1 + hvd.rank())
        model, optimizer = Late(), hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
        if hvd.rank() in builders:
            model(data()[0])
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        weights = trained_together(model, optimizer, hvd.rank(), hvd.size(), callbacks=callbacks)
        assert_same(weights, [hvd.broadcast(each, 0) for each in weights], tolerance=0)


@scenario
def metrics_are_averages_for_the_callbacks_that_follow() -> None:
    import keras

    import hvdlite.keras as hvd

    seen: list[float] = []
    look = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["val_loss"]))
    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse", metrics=["mae"])
    inputs, targets = (share(each, hvd.rank(), hvd.size()) for each in data())
    callbacks = [hvd.callbacks.MetricAverageCallback(), look]
    history = model.fit(
        inputs,
        targets,
        batch_size=8,
        validation_data=(inputs[:9], targets[:9]),
        verbose=0,
        epochs=2,
        callbacks=callbacks,
    ).history
    assert seen == history["val_loss"]
    assert hvd.allgather_object(history) == [history] * hvd.size()
    own = model.evaluate(inputs[:9], targets[:9], verbose=0)[0]
    assert abs(history["val_loss"][-1] - hvd.allreduce(own)) < 1e-5

    with pytest.raises(ValueError, match="ranks have different metrics at the end of an epoch: rank"):
        hvd.callbacks.MetricAverageCallback().on_epoch_end(0, {"loss": 1.0, f"other{hvd.rank()}": 2.0})


@scenario
def the_learning_rate_warms_up_with_each_batch_and_then_follows_its_schedule() -> None:
    import keras

    import hvdlite.keras as hvd

    rates: list[float] = []

    class Rates(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))

    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), loss="mse")
    inputs, targets = (share(each, hvd.rank(), hvd.size()) for each in data())
    callbacks = [
        hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=1),
        hvd.callbacks.LearningRateScheduleCallback(0.4, lambda epoch: 0.5**epoch, start_epoch=2, end_epoch=4),
        hvd.callbacks.LearningRateScheduleCallback(0.4, 0.01, start_epoch=4),
        Rates(),
    ]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        logs = model.fit(inputs, targets, batch_size=8, epochs=5, verbose=0, callbacks=callbacks).history
    warmed = "\nEpoch 2: finished gradual learning rate warmup to 0.4.\n"  # as float32, it has more digits
    assert said.getvalue() == (warmed if hvd.rank() == 0 else "")
    steps = 6
    warm = [0.4 * (0.5 + 0.5 * (step + 1) / (2 * steps)) for step in range(2 * steps)]
    np.testing.assert_allclose(rates, warm + [0.1] * steps + [0.05] * steps + [0.004] * steps, rtol=1e-5)
    np.testing.assert_allclose(logs["lr"], [rates[steps - 1], 0.4, 0.1, 0.05, 0.004], rtol=1e-5)
    with pytest.raises(ValueError, match="initial_lr is needed"):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.1)


def _linear(rates: list[float], gradient: Any, weights: Any, corrects: bool, kind: str) -> Any:
    """Weights after steps with momentum 0.9 in the words of Horovod, which multiplies the momentum of a step."""
    velocity, square, before = np.zeros_like(weights), np.zeros_like(weights), rates[0]
    for rate in rates:
        momentum = 0.9 * rate / before if corrects else 0.9
        found = gradient(weights)
        if kind == "RMSprop":
            square = 0.9 * square + 0.1 * found**2
            found = found / np.sqrt(square + 1e-7)
        velocity = momentum * velocity - rate * found
        weights = weights + (0.9 * velocity - rate * found if kind == "Nesterov" else velocity)
        before = rate
    return weights


@scenario
def momentum_follows_the_learning_rate() -> None:
    import keras
    from keras import optimizers

    import hvdlite.keras as hvd

    inputs, targets = data(48)
    found = {}
    for kind, make in (
        ("SGD", lambda: optimizers.SGD(0.05, momentum=0.9)),
        ("Nesterov", lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True)),
        ("RMSprop", lambda: optimizers.RMSprop(0.05, momentum=0.9)),
    ):
        for corrects in (True, False):
            keras.utils.set_random_seed(1)
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
            first = model.get_weights()[0]
            model.compile(hvd.DistributedOptimizer(make()), loss="mse")
            schedule = hvd.callbacks.LearningRateScheduleCallback(
                0.05, lambda epoch: 2.0 / (1 + epoch), staircase=False, momentum_correction=corrects
            )
            model.fit(inputs, targets, batch_size=48, steps_per_epoch=1, epochs=6, verbose=0, callbacks=[schedule])
            (found[kind, corrects],) = model.get_weights()
            rates = [0.05 * 2.0 / (1 + epoch) for epoch in range(6)]
            gradient = lambda weights: 2 * inputs.T @ (inputs @ weights - targets) / len(inputs)  # noqa: E731
            expected = _linear(rates, gradient, first, corrects, kind)
            np.testing.assert_allclose(found[kind, corrects], expected, rtol=1e-4, atol=1e-5)
        assert np.abs(found[kind, True] - found[kind, False]).max() > 1e-3
    model.compile(hvd.DistributedOptimizer(optimizers.Muon(0.1)), loss="mse")
    with pytest.warns(UserWarning, match="momentum_correction has no effect on the momentum of Muon"):
        model.fit(inputs, targets, verbose=0, callbacks=[hvd.callbacks.LearningRateScheduleCallback(0.1, 1.0)])


@scenario
def different_numbers_of_batches_are_refused_before_the_first() -> None:
    from keras import optimizers

    import hvdlite.keras as hvd

    model = network()
    model.compile(hvd.DistributedOptimizer(optimizers.SGD(0.1)), loss="mse")
    inputs, targets = data(8 * (3 + hvd.rank()))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    with pytest.raises(ValueError, match=r"\(rank 0 3, rank 1 4\).*pass steps_per_epoch=3 to fit"):
        model.fit(inputs, targets, batch_size=8, verbose=0, callbacks=callbacks)
    model.fit(inputs[:24], targets[:24], batch_size=8, verbose=0, callbacks=callbacks)


@scenario
def batch_normalization_of_the_replicas_of_keras_is_refused() -> None:
    import keras

    import hvdlite.keras as hvd

    if keras.backend.backend() != "tensorflow":
        with pytest.raises(ValueError, match="synchronized"):  # by Keras itself
            keras.layers.BatchNormalization(synchronized=True)
        return
    inputs, targets = data(8)
    inner = keras.Sequential([keras.layers.BatchNormalization(synchronized=True)])
    model = keras.Sequential([inner, *network().layers])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    with pytest.raises(ValueError, match=r"layer 'batch_norm.*' has synchronized=True.*use hvdlite.tensorflow.SyncB"):
        model.fit(inputs, targets, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])


@scenario
def a_saved_model_opens_without_hvdlite_and_goes_on_with_it() -> None:
    import keras

    import hvdlite.keras as hvd

    model = network()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert type(optimizer).__name__ == "Adam"
    trained_together(model, optimizer, hvd.rank(), hvd.size(), epochs=1)
    path = _folder() / "model.keras"
    if hvd.rank() == 0:
        model.save(path)
        told = subprocess.run(
            [sys.executable, "-c", _OPENS, str(path)], env=dict(os.environ), capture_output=True, text=True
        )
        assert told.stdout == "Adam 6\n", told.stderr
    hvd.barrier()
    loaded = hvd.load_model(path)
    with pytest.raises(ValueError, match="is a DistributedOptimizer already"):
        hvd.DistributedOptimizer(loaded.optimizer)
    assert_same(loaded.get_weights(), model.get_weights(), tolerance=0)
    for each in (loaded, model):
        inputs, targets = (share(one, hvd.rank(), hvd.size()) for one in data(seed=1))
        each.fit(inputs, targets, batch_size=8, shuffle=False, verbose=0)
    assert_same(loaded.get_weights(), model.get_weights())
    config = optimizer.get_config()
    assert type(type(optimizer).from_config(config)).__name__ == "Adam"


@scenario
def backups_and_checkpoints_of_one_rank_suffice() -> None:
    import keras

    import hvdlite.keras as hvd

    folder = _folder()
    own = folder / f"backup of rank {hvd.rank()}"  # as on hosts without a shared disk

    def fit(epochs: int, until: int | None) -> tuple[Any, list[int]]:
        begun: list[int] = []

        def begin(epoch: int, logs: Any) -> None:
            if epoch == until:
                raise KeyboardInterrupt
            begun.append(epoch)

        model = network(seed=1 + hvd.rank())
        backup = [keras.callbacks.BackupAndRestore(own)] if hvd.rank() == 0 else []
        callbacks = [
            *backup,
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.BestModelCheckpoint(folder / f"best of rank {hvd.rank()}.keras", monitor="loss"),
            keras.callbacks.LambdaCallback(on_epoch_begin=begin),
        ]
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
        with contextlib.suppress(KeyboardInterrupt):
            trained_together(model, optimizer, hvd.rank(), hvd.size(), epochs=epochs, callbacks=callbacks)
        return model, begun

    assert fit(4, until=2)[1] == [0, 1]
    model, begun = fit(4, until=None)
    assert begun == [2, 3]
    assert_same(model.get_weights(), trained_alone(network(), keras.optimizers.Adam(0.01), hvd.size(), epochs=4))
    assert [path.name for path in sorted(folder.glob("best*"))] == ["best of rank 0.keras"]


def test_scenario(report: Report, name: str) -> None:
    assert report[name] == ""
