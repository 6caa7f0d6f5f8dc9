"""Nodes that call Python: operations of TensorFlow itself, so a graph of them can be loaded without hvdlite.

They find their functions by name in each process that has imported `hvdlite.tensorflow`.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import script_ops

from hvdlite.errors import Mismatch
from hvdlite.ops import address_of
from hvdlite.tensorflow.operation.calls import ARRAYS
from hvdlite.tensorflow.operation.failing import failing
from hvdlite.tensorflow.operation.pending import finish, iterator_of, start, whose_runs_are_over

_ALIGNMENT: Final = 64  # TensorFlow copies memory that is aligned to less
_START: Final = "hvdlite_start"
_ITERATOR: Final = "hvdlite_iterator"
_FINISH: Final = "hvdlite_finish"
_PROBE: Final = "hvdlite_probe"
_IS_PROBE: Final = "hvdlite_is_probe"


class NumpyFunctions:
    """The nodes of a collective in functions that TensorFlow runs.

    TensorFlow does not keep the class of an error of a Python function, so another operation fails first (`Failing`),
    where it can be made.
    """

    def __init__(self) -> None:
        self._failing = failing()

    def start(self, text: str, tensors: Sequence[Any]) -> tuple[Any, Any]:
        return _start_node(text, tensors)

    def finish(self, ticket: Any, news: Any, queues: Sequence[Any], dtypes: Sequence[Any]) -> Sequence[Any]:
        is_last = self._failing is None
        before = [] if self._failing is None else [self._failing.node(ticket, news, queues)]
        with tf.control_dependencies(before):
            return _finish_node(ticket, news, dtypes, is_last)


def session_nodes(text: str, tensors: Sequence[Any], dtypes: Sequence[Any]) -> Any:
    """Adds the three nodes of a collective in a graph that a session runs.

    A session has its own resources, and does not find the queue of a ticket. So it waits for the next element of an
    iterator over the queue, which works in every session and blocks no thread. Returns the results as a list, or the
    operation if there are none.
    """
    ticket, _ = _start_node(text, tensors)
    (iterator,) = tf.raw_ops.EagerPyFunc(input=[ticket], token=_ITERATOR, Tout=[tf.resource])
    (news,) = tf.raw_ops.IteratorGetNext(iterator=iterator, output_types=[tf.bool], output_shapes=[[]])
    return _finish_node(ticket, news, dtypes, True)


def _start_node(text: str, tensors: Sequence[Any]) -> tuple[Any, Any]:
    ticket, queue = tf.raw_ops.PyFunc(input=[tf.constant(text), *tensors], token=_START, Tout=[tf.int64, tf.string])
    return ticket, queue


def _finish_node(ticket: Any, news: Any, dtypes: Sequence[Any], is_stateful: bool) -> Sequence[Any]:
    kind = tf.raw_ops.PyFunc if is_stateful else tf.raw_ops.PyFuncStateless
    outputs: Sequence[Any] = kind(input=[ticket, news], token=_FINISH, Tout=list(dtypes))
    return outputs


def _start(text: bytes, *values: Any) -> Any:
    """Returns a ticket, and the serialized queue in which there will be news.

    The ticket is an array that TensorFlow keeps as the memory of a tensor as long as the run may need it. So a run is
    over when the array is freed. If TensorFlow copied it, tickets of runs that fail elsewhere would be kept for ever.
    """
    ticket = start(text, ARRAYS, [np.asarray(value) for value in values])
    array = _aligned(ticket.number)
    if _keeps_arrays():
        reference = _references[ticket.number] = _Reference(array, _over.append)
        reference.number = ticket.number
    return array, ticket.queue.serialized


def _iterator(ticket: Any) -> Any:
    return iterator_of(int(ticket[0]))


def _finish(ticket: Any, news: Any) -> list[Any]:
    try:
        return [np.asarray(value) for value in finish(int(ticket[0]))]
    except (tf.errors.InvalidArgumentError, Mismatch) as error:
        raise ValueError(str(error)) from None  # makes the graph fail with InvalidArgumentError


def _aligned(number: int) -> Any:
    """Returns an array of only ``number``, whose memory TensorFlow can use without a copy."""
    memory = np.zeros(_ALIGNMENT + 8, np.uint8)
    begin = -address_of(memory) % _ALIGNMENT
    array = memory[begin : begin + 8].view(np.int64)
    array[0] = number
    return array


@cache
def _keeps_arrays() -> bool:
    """True if TensorFlow uses the memory of an array that a function returns, as known versions do."""
    with context.eager_mode():
        (tensor,) = tf.raw_ops.PyFunc(input=[], token=_PROBE, Tout=[tf.int64])
        (is_same,) = tf.raw_ops.PyFunc(input=[tensor], token=_IS_PROBE, Tout=[tf.bool])
        return bool(is_same)


class _Reference(weakref.ref[Any]):
    """A weak reference to the array of a ticket, which is appended to ``_over`` when the array is freed.

    No Python code runs then: during it a signal handler might run, whose exception would be lost.
    """

    __slots__ = ("number",)

    number: int


_probe: Final = _aligned(0)
_over: Final[deque[Any]] = deque()
_references: Final[dict[int, _Reference]] = {}


def _ended() -> Iterator[int]:
    with suppress(IndexError):
        while True:
            number: int = _over.popleft().number
            del _references[number]
            yield number


whose_runs_are_over.append(_ended)

# TensorFlow keeps weak references.
_functions: Final[dict[str, Callable[..., Any]]] = {
    _START: _start,
    _ITERATOR: script_ops.EagerFunc(_iterator, [tf.resource], False),
    _FINISH: _finish,
    _PROBE: lambda: _probe,
    _IS_PROBE: lambda array: np.bool_(address_of(array) == address_of(_probe)),
}
script_ops._py_funcs._funcs.update(_functions)
