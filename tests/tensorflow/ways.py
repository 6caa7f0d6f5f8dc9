"""The ways in which a collective of TensorFlow runs: eager, in a graph on either route, and in a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from ml_dtypes import finfo

from hvdlite.tensorflow.operation import route as routes
from hvdlite.tensorflow.operation import running

tf.get_logger().setLevel("ERROR")  # of functions that are traced often, as here

Way = Callable[..., Any]


@contextmanager
def through(choice: str) -> Iterator[None]:
    """A context in which graphs are built for one route."""
    with mock.patch.object(running, "route", return_value=routes._route(choice)):
        yield


def eagerly(function: Callable[..., Any], *arguments: Any) -> Any:
    assert tf.executing_eagerly()
    return function(*arguments)


def compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    with through("compiled"):
        return tf.function(function)(*arguments)


def by_numpy(function: Callable[..., Any], *arguments: Any) -> Any:
    with through("numpy"):
        return tf.function(function)(*arguments)


def in_session(function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs it in a graph of TensorFlow 1."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fed = [tf.compat.v1.placeholder(each.dtype, each.shape) for each in arguments]
        built = function(*fed)
        session.run(tf.compat.v1.global_variables_initializer())
        found = session.run(built, dict(zip(fed, (each.numpy() for each in arguments), strict=True)))
    return tf.nest.map_structure(lambda value, tensor: tf.constant(value, tensor.dtype), found, built)


GRAPHS: Sequence[Way] = (compiled, by_numpy)
WAYS: Sequence[Way] = (eagerly, *GRAPHS)
ALL_WAYS: Sequence[Way] = (*WAYS, in_session)
"""With the one for functions that get all tensors as arguments, and no variables."""


def assert_close(actual: Any, expected: Any, tolerance: float | None = None) -> None:
    """Same dtype and shape, and equal within ``tolerance``, by default a few roundings of the dtype."""
    wanted = tf.convert_to_tensor(expected)
    assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape), f"{actual} is not {wanted}"
    if tolerance is None:
        tolerance = 4 * float(finfo(actual.dtype.as_numpy_dtype).eps) if actual.dtype.is_floating else 0
    found, true = (np.asarray(tf.cast(each, tf.complex128)) for each in (actual, wanted))
    np.testing.assert_allclose(found, true, rtol=tolerance, atol=tolerance)
