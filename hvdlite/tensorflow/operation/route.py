"""The two routes from a graph to hvdlite: compiled kernels where they can be made, and `tf.numpy_function`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from hvdlite.log import logger
from hvdlite.session import current, local_rank
from hvdlite.settings import cache_home
from hvdlite.tensorflow.operation.binding import CompiledKernels
from hvdlite.tensorflow.operation.calls import ARRAYS, Call
from hvdlite.tensorflow.operation.compiling import CannotCompile, library
from hvdlite.tensorflow.operation.tickets import finish, start


class Route(Protocol):
    """Makes the two nodes of a collective that are hvdlite's own."""

    def start(self, token: int, call: Call, tensors: Sequence[Any]) -> Any:
        """Adds the node that starts ``call``. Returns its output, a ticket. A token always stands for the same call."""

    def finish(self, ticket: Any, news: Any, dtypes: Sequence[Any]) -> Sequence[Any]:
        """Adds the node that hands out the results of the ticket, once there is news."""


def route() -> Route:
    """Returns the route of this session, as ``HVDLITE_TENSORFLOW_ROUTE`` says."""
    return _route(current().options.tensorflow_route)


@cache
def _route(choice: str) -> Route:
    if choice == "numpy":
        return NumpyFunctions()
    try:
        return _compiled()
    except (CannotCompile, OSError, tf.errors.OpError) as error:
        if choice == "compiled":
            raise ValueError(f"HVDLITE_TENSORFLOW_ROUTE=compiled, but {error}") from error
        level = logging.WARNING if local_rank() == 0 else logging.INFO  # one line for a host
        logger.log(level, "collectives in graphs run through tf.numpy_function, which is slower: %s", error)
        return NumpyFunctions()


@cache
def _compiled() -> CompiledKernels:
    return CompiledKernels(library(cache_home(), tf.__version__, tf.sysconfig.get_link_flags()))


class NumpyFunctions:
    """The nodes of every TensorFlow."""

    def start(self, token: int, call: Call, tensors: Sequence[Any]) -> Any:
        return tf.numpy_function(partial(_start, token, call), tensors, tf.int64)

    def finish(self, ticket: Any, news: Any, dtypes: Sequence[Any]) -> Sequence[Any]:
        outputs = tf.numpy_function(_finish, [ticket, news], list(dtypes))
        return outputs if isinstance(outputs, list) else [outputs]


def _start(token: int, call: Call, *values: Any) -> Any:
    return np.int64(start(token, call, ARRAYS, [np.asarray(value) for value in values]))


def _finish(ticket: Any, news: Any) -> list[Any]:
    try:
        return [np.asarray(value) for value in finish(int(ticket))]
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(str(error)) from None  # which makes the graph fail with the same class
