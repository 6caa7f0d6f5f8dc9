"""The ways in which a collective of TensorFlow runs: eager, and in a graph on either route."""

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


GRAPHS: Sequence[Way] = (compiled, by_numpy)
WAYS: Sequence[Way] = (eagerly, *GRAPHS)


def assert_close(actual: Any, expected: Any, tolerance: float | None = None) -> None:
    """Same dtype and shape, and equal within ``tolerance``, by default a few roundings of the dtype."""
    wanted = tf.convert_to_tensor(expected)
    assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape), f"{actual} is not {wanted}"
    if tolerance is None:
        tolerance = 4 * float(finfo(actual.dtype.as_numpy_dtype).eps) if actual.dtype.is_floating else 0
    found, true = (np.asarray(tf.cast(each, tf.complex128)) for each in (actual, wanted))
    np.testing.assert_allclose(found, true, rtol=tolerance, atol=tolerance)
