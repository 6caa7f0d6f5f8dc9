"""The two routes from a graph to hvdlite: compiled kernels where they can be made, and `tf.numpy_function`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, Protocol

import tensorflow as tf

from hvdlite.log import logger
from hvdlite.session import current, local_rank
from hvdlite.settings import cache_home
from hvdlite.tensorflow.operation.binding import CompiledKernels
from hvdlite.tensorflow.operation.compiling import CannotCompile, library
from hvdlite.tensorflow.operation.failing import failing
from hvdlite.tensorflow.operation.numpy_functions import NumpyFunctions

_choosing: Final = threading.Lock()  # TensorFlow ends a process that registers an operation twice


class Route(Protocol):
    """Makes the two nodes of a collective that are hvdlite's own."""

    def start(self, text: str, tensors: Sequence[Any]) -> tuple[Any, Any]:
        """Adds the node that starts the call of ``text`` (see `encoded`). Returns a ticket and its serialized queue."""

    def finish(self, ticket: Any, news: Any, queues: Sequence[Any], dtypes: Sequence[Any]) -> Sequence[Any]:
        """Adds the node that returns the results of the ticket after ``news``.

        With its queue in ``queues``, TensorFlow does not order it with nodes that do not need the results.
        """


def know_operations() -> None:
    """Lets TensorFlow load graphs of other processes with operations of either route, where it can."""
    failing()
    with _choosing, suppress(CannotCompile, OSError, tf.errors.OpError):  # `route` raises or logs it when necessary
        _compiled()


def route() -> Route:
    """Returns the route of this session, by ``HVDLITE_TENSORFLOW_ROUTE``."""
    with _choosing:
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
