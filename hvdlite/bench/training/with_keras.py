"""A step of Keras on TensorFlow, compiled: bare, with hvdlite's optimizer, and in TensorFlow's own strategy.

The model is the one of ``--train torch``, but Keras has separate weights for queries, keys and values, so there are 99
tensors. Keras's `fit` fails in that strategy. A loop of one's own works: there Keras divides
the loss by the number of replicas, and its optimizer sums the gradients.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import hvdlite.keras as hvd
from hvdlite import allgather_object
from hvdlite.bench.measuring.report import Group, Study, make_row
from hvdlite.bench.measuring.timing import Candidate, measure
from hvdlite.bench.training.figures import BATCH, TOKENS, columns, has_equal_weights
from hvdlite.errors import HvdError
from hvdlite.launcher.agent.answers import free_port
from hvdlite.settings import Settings

_LEARNING_RATE = 0.01
_OP = "train keras"
_CONNECT_S = 60.0


class Sizes(NamedTuple):
    """The size of a transformer."""

    vocabulary: int
    width: int
    layers: int
    heads: int


SIZES = Sizes(vocabulary=8000, width=512, layers=6, heads=8)


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


def open_strategy() -> Any:
    """Connects `tf.distribute.MultiWorkerMirroredStrategy` among the ranks, by gRPC. Raises HvdError if that fails.

    It has to come before whatever makes TensorFlow choose its devices, such as the first tensor. The strategy finds its
    peers by ``TF_CONFIG``, which hvdrun never sets, since TensorFlow acts on it wherever it finds it.
    """
    communication = tf.distribute.experimental.CommunicationOptions(
        timeout_seconds=_CONNECT_S, implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    place = f"{Settings.read().address or '127.0.0.1'}:{free_port('0.0.0.0')}"
    cluster = {"worker": allgather_object(place)}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": hvd.rank()}})
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication)
    except (RuntimeError, tf.errors.OpError) as error:
        raise HvdError(f"tf.distribute's strategy could not connect: {error}") from None
    finally:
        del os.environ["TF_CONFIG"]


def make_model() -> keras.Model:
    """Makes the model, from tokens to logits of the next tokens, with the same initial weights in every process."""
    keras.utils.set_random_seed(1)
    layers, sizes = keras.layers, SIZES
    tokens = keras.Input((TOKENS,), BATCH, dtype="int32")
    hidden = layers.Embedding(sizes.vocabulary, sizes.width)(tokens)
    for _ in range(sizes.layers):
        seen = layers.LayerNormalization()(hidden)
        attention = layers.MultiHeadAttention(sizes.heads, sizes.width // sizes.heads)
        hidden = layers.add([hidden, attention(seen, seen, use_causal_mask=True)])
        wide = layers.Dense(4 * sizes.width, "relu")(layers.LayerNormalization()(hidden))
        hidden = layers.add([hidden, layers.Dense(sizes.width)(wide)])
    return keras.Model(tokens, layers.Dense(sizes.vocabulary)(hidden))


def _batch(rank: int) -> tuple[Any, Any]:
    """Tokens and the tokens that follow them, of shape ``(BATCH, TOKENS)``."""
    text = np.random.default_rng(rank).integers(SIZES.vocabulary, size=(BATCH, TOKENS + 1), dtype=np.int32)
    return text[:, :-1], text[:, 1:]


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
    tokens, following = map(tf.constant, _batch(hvd.rank()))
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
