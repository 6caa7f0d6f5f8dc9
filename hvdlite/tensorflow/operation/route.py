"""The two routes from a graph to hvdlite: compiled kernels where they can be made, and `tf.numpy_function`."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, Protocol

import numpy as np
import tensorflow as tf

from hvdlite.log import logger
from hvdlite.session import current, local_rank
from hvdlite.settings import cache_home
from hvdlite.tensorflow.operation.binding import CompiledKernels
from hvdlite.tensorflow.operation.calls import ARRAYS
from hvdlite.tensorflow.operation.compiling import CannotCompile, library
from hvdlite.tensorflow.operation.failing import failing
from hvdlite.tensorflow.operation.tickets import finish, start, whose_runs_are_over
from hvdlite.tensors.buffer import address_of

_ALIGNMENT: Final = 64  # TensorFlow copies what is aligned to less

_choosing: Final = threading.Lock()  # TensorFlow ends a process that registers an operation twice


class Route(Protocol):
    """Makes the two nodes of a collective that are hvdlite's own."""

    def start(self, text: str, tensors: Sequence[Any]) -> tuple[Any, Any]:
        """Adds the node that starts the call of ``text`` (see `encoded`). Returns a ticket and its serialized queue."""

    def finish(self, ticket: Any, news: Any, queues: Sequence[Any], dtypes: Sequence[Any]) -> Sequence[Any]:
        """Adds the node that hands out the results of the ticket, once there is news.

        With its queue in ``queues`` it is in no order with nodes that do not need the results.
        """


def route() -> Route:
    """Returns the route of this session, as ``HVDLITE_TENSORFLOW_ROUTE`` says."""
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


class NumpyFunctions:
    """The nodes of every TensorFlow.

    A ticket is an array that TensorFlow keeps as the memory of a tensor for as long as the run may need it, so a run is
    over when the array is gone. Where TensorFlow would copy it, tickets of runs that fail elsewhere stay. What a
    function raises loses its class on the way, so another operation fails in its place (`Failing`), where there can be
    one.
    """

    def __init__(self) -> None:
        self._failing = failing()
        self._over: deque[int] = deque()
        self._are_kept = _keeps_arrays()
        whose_runs_are_over.append(self._ended)

    def start(self, text: str, tensors: Sequence[Any]) -> tuple[Any, Any]:
        ticket, queue = tf.numpy_function(self._start, [tf.constant(text), *tensors], [tf.int64, tf.string])
        return ticket, queue

    def finish(self, ticket: Any, news: Any, queues: Sequence[Any], dtypes: Sequence[Any]) -> Sequence[Any]:
        is_last = self._failing is None
        before = [] if self._failing is None else [self._failing.node(ticket, news, queues)]
        with tf.control_dependencies(before):
            outputs = tf.numpy_function(_finish, [ticket, news], list(dtypes), stateful=is_last)
        return outputs if isinstance(outputs, list) else [outputs]

    def _start(self, text: bytes, *values: Any) -> Any:
        ticket = start(text, ARRAYS, [np.asarray(value) for value in values])
        array = _aligned(ticket.number)
        if self._are_kept:
            weakref.finalize(array, self._over.append, ticket.number).atexit = False
        return array, ticket.queue.serialized

    def _ended(self) -> Iterator[int]:
        with suppress(IndexError):
            while True:
                yield self._over.popleft()


def _finish(ticket: Any, news: Any) -> list[Any]:
    try:
        return [np.asarray(value) for value in finish(int(ticket[0]))]
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(str(error)) from None  # which makes the graph fail with the same class


def _aligned(number: int) -> Any:
    """Returns an array of ``number`` alone, whose memory TensorFlow can use as it is."""
    memory = np.zeros(_ALIGNMENT + 8, np.uint8)
    begin = -address_of(memory) % _ALIGNMENT
    array = memory[begin : begin + 8].view(np.int64)
    array[0] = number
    return array


def _keeps_arrays() -> bool:
    """True if TensorFlow uses an array that a function returns as the memory of a tensor, as known versions do."""
    array = _aligned(0)

    def is_same(found: Any) -> Any:
        return np.bool_(address_of(found) == address_of(array))

    def compare() -> Any:
        return tf.numpy_function(is_same, [tf.numpy_function(lambda: array, [], tf.int64)], tf.bool)

    with tf.init_scope():
        return bool(tf.function(compare, autograph=False)())
