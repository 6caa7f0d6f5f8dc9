"""A step of Keras on TensorFlow, compiled: bare, with hvdlite's optimizer, and in TensorFlow's own strategy.

Keras's `fit` fails in that strategy. A loop of one's own works: there Keras divides the loss by the number of replicas,
and its optimizer sums the gradients.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

import hvdlite.keras as hvd
from hvdlite.bench.measuring.report import Group, Study, make_row
from hvdlite.bench.measuring.timing import Candidate, measure
from hvdlite.bench.training.figures import BATCH, TOKENS, columns, has_equal_weights
from hvdlite.bench.training.keras_model import make_batch, make_model
from hvdlite.bench.training.strategy import open_strategy

_LEARNING_RATE = 0.01
_OP = "train keras"


def train(iterations: int, warmup: int) -> Study:
    """The study of the three steps. hvdlite must be initialised, and TensorFlow must not have run anything yet."""
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    strategy = open_strategy()
    return Study(
        f"training step of Keras on TensorFlow, batch {BATCH}×{TOKENS} tokens on each rank",
        columns("strategy"),
        _measure_steps(strategy, iterations, warmup),
    )


def _measure_steps(strategy: Any, iterations: int, warmup: int) -> Iterator[Group]:
    candidates = [_bare(), _hvdlite(), _strategy(strategy)]
    nbytes = sum(4 * weight.shape.num_elements() for weight in make_model().trainable_variables)
    times = measure(candidates, iterations, warmup)
    yield {label: make_row(label, hvd.size(), _OP, "float32", nbytes, taken) for label, taken in times.items()}


def _bare() -> Candidate:
    model = make_model()
    step = _compiled(_step(model, _sgd()))

    def is_right() -> bool:
        step()
        return True  # the ranks differ, as they should

    return Candidate("bare", step, is_right)


def _hvdlite() -> Candidate:
    model = make_model()
    step = _compiled(_step(model, hvd.DistributedOptimizer(_sgd())))
    return Candidate("hvdlite", step, has_equal_weights(step, lambda: _sum(model)))


def _strategy(strategy: Any) -> Candidate:
    with strategy.scope():
        model = make_model()
        replica_step = _step(model, _sgd())
    step = _compiled(lambda: strategy.run(replica_step))
    return Candidate("strategy", step, has_equal_weights(step, lambda: _sum(model)))


def _sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(_LEARNING_RATE)


def _step(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Callable[[], Any]:
    """Returns the step, on a batch of this rank."""
    tokens, following = map(tf.constant, make_batch(hvd.rank()))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean")
    optimizer.build(model.trainable_variables)

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(following, model(tokens, training=True))
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step


def _compiled(step: Callable[[], Any]) -> Callable[[], None]:
    function = tf.function(step)

    def run() -> None:
        function().numpy()  # which waits for it

    return run


def _sum(model: keras.Model) -> float:
    return sum(float(weight.sum(dtype="float64")) for weight in model.get_weights())
