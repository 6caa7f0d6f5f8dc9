"""Models and batches for tests of training with Keras. Keras is imported when a rank needs it, with its back end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from importlib.machinery import PathFinder
from typing import Any

import numpy as np

from tests.harness.scenarios import Report, Scenarios

BACKENDS = ("jax", "torch", "tensorflow")

ROWS = 8
"""Rows of one rank's batch."""


class _WithoutTensorFlow(PathFinder):
    """Does not find TensorFlow, which Keras would import on every back end. Users of another may have none."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name.partition(".")[0] == "tensorflow" else super().find_spec(name, path, target)


class KerasScenarios(Scenarios):
    """Scenarios of ranks with Keras."""

    def run(self, without: Collection[str] = ()) -> Report:
        prepare()
        return super().run(without)


def prepare() -> None:
    """Makes this process one that has Keras and its back end only."""
    if os.environ["KERAS_BACKEND"] != "tensorflow":
        sys.meta_path[:] = [_WithoutTensorFlow if finder is PathFinder else finder for finder in sys.meta_path]


def data(rows: int = 96, seed: int = 0) -> tuple[Any, Any]:
    """Inputs and targets, the same on every rank."""
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(rows, 4)).astype("float32")
    return inputs, np.tanh(inputs.sum(axis=1, keepdims=True)).astype("float32")


def share(array: Any, rank: int, size: int, rows: int = ROWS) -> Any:
    """The rows of one rank, so that the batches of all ranks together are those of one process, in order."""
    return np.concatenate(np.split(array, len(array) // rows)[rank::size])


def network(seed: int = 1, width: int = 8, **options: Any) -> Any:
    """A network of two layers."""
    import keras

    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(width, activation="tanh", **options), keras.layers.Dense(1, dtype="float32")]
    return keras.Sequential([keras.Input((4,)), *layers])


def trained_alone(model: Any, optimizer: Any, size: int, epochs: int = 2, **compiled: Any) -> list[Any]:
    """The weights after training in this process, with the batches of ``size`` ranks."""
    model.compile(optimizer, loss="mse", **compiled)
    inputs, targets = data()
    model.fit(inputs, targets, batch_size=size * ROWS, epochs=epochs, shuffle=False, verbose=0)
    return list(model.get_weights())


def trained_together(
    model: Any,
    optimizer: Any,
    rank: int,
    size: int,
    epochs: int = 2,
    callbacks: Sequence[Any] = (),
    **compiled: Any,
) -> list[Any]:
    """The weights after training with this rank's share."""
    model.compile(optimizer, loss="mse", **compiled)
    inputs, targets = (share(each, rank, size) for each in data())
    model.fit(inputs, targets, batch_size=ROWS, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))
    return list(model.get_weights())


def assert_same(found: Sequence[Any], expected: Sequence[Any], tolerance: float = 1e-5) -> None:
    """Equal but for roundings."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def raised_by(call: Callable[[], Any], kind: type) -> tuple[BaseException, str]:
    """The error of hvdlite with which ``call`` ends, and the text of what it raises, which may be the back end's."""
    try:
        call()
    except kind as error:
        return error, str(error)
    except Exception as raised:
        from hvdlite.keras.backend import last_error

        error = last_error()
        if not isinstance(error, kind):
            raise
        return error, str(raised)
    raise AssertionError("nothing was raised")
