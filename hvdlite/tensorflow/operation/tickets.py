"""Collectives that graphs have started: whoever starts one gets a ticket, for which it hands out the results.

A graph waits for a ticket in TensorFlow's own `QueueDequeue`, which keeps no thread waiting. Every call has a queue,
and the end of a collective puts one element into it. If a graph runs twice at the same time, the news of one run may
reach the other; that one then waits for its own collective in a thread of TensorFlow.

A run that fails elsewhere never asks for its results, and leaves its news in the queue. Either route notices when a run
is over (`whose_runs_are_over`). Before the next collective its tickets are given up: what is still in flight stays so,
for the other ranks, its result is dropped, and the next call of that name is submitted when it is done. The queue is
emptied before the next run of that call.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final

import tensorflow as tf

from hvdlite.log import logger
from hvdlite.negotiation.handle import Handle
from hvdlite.ops import GroupHandle, abandon, synchronize
from hvdlite.tensorflow.errors import in_both, remember
from hvdlite.tensorflow.operation.calls import Call, Tensors, submit

NEWS: Final = [tf.bool]
"""The types of an element of a queue."""

QUEUES: Final = "hvdlite."
"""What the names of the queues begin with."""

_numbers: Final = itertools.count(1)  # 0 is none
_tickets: Final[dict[int, _Ticket]] = {}
_stale: Final[set[int]] = set()
"""The calls in whose queues there may be news of runs that are over."""
_emptying: Final = threading.Lock()

whose_runs_are_over: Final[list[Callable[[], Iterable[int]]]] = []
"""Return the numbers of tickets, each once. One function for each route."""


def queue_of(token: int) -> Any:
    """Returns the handle of the queue of a call: a tensor, or a node where a graph is built."""
    return tf.raw_ops.FIFOQueueV2(component_types=NEWS, shapes=[[]], shared_name=f"{QUEUES}{token}")


def start(token: int, call: Call, kind: Tensors, tensors: Sequence[Any]) -> int:
    """Starts ``call`` and returns the number of its ticket. An error is raised by `finish`."""
    give_up_ended()
    ticket = _Ticket(token, call, kind)
    number = next(_numbers)
    with _emptying:
        if token in _stale and not any(each.token == token for each in _tickets.copy().values()):
            _stale.discard(token)
            _empty(token)
        _tickets[number] = ticket
    try:
        handle = call.draft(kind, tensors)
        submit(handle)
    except Exception as error:
        ticket.error = error
        ticket.tell()
    else:
        ticket.follow(handle)
    return number


def settle(number: int) -> None:
    """Waits for the collective of a ticket. Raises its error, and then the ticket is no more."""
    try:
        _tickets[number].settle()
    except Exception as error:
        del _tickets[number]
        found = in_both(error)
        remember(found)
        raise found from error.__cause__


def finish(number: int) -> list[Any]:
    """Returns the results of a ticket, which then is no more. Raises what `settle` raises."""
    settle(number)
    return _tickets.pop(number).results


def give_up_ended() -> None:
    """Gives up the tickets of the runs that are over."""
    for numbers in whose_runs_are_over:
        for number in numbers():
            give_up(number)


def give_up(number: int) -> None:
    """Lets go of a ticket whose run is over, if it never asked for the results."""
    with _emptying:  # so that `start` sees either the ticket or that its news are stale
        ticket = _tickets.pop(number, None)
        if ticket is not None and ticket.give_up():
            _stale.add(ticket.token)


class _Ticket:
    """The waiter of a collective: `release` is called in threads of hvdlite as its tensors get done, one by one."""

    __slots__ = (
        "_call",
        "_is_given_up",
        "_is_told",
        "_kind",
        "_left",
        "_telling",
        "error",
        "handle",
        "results",
        "token",
    )

    def __init__(self, token: int, call: Call, kind: Tensors) -> None:
        self._telling = threading.Lock()
        self._is_told = self._is_given_up = False
        self.token = token
        self._call = call
        self._kind = kind
        self.handle: Handle[Any] | GroupHandle[Any] | None = None
        self.error: Exception | None = None
        self.results: list[Any] = []
        self._left: Iterator[Handle[Any]] = iter(())

    def follow(self, handle: Handle[Any] | GroupHandle[Any]) -> None:
        self.handle = handle
        self._left = iter(handle.handles if isinstance(handle, GroupHandle) else (handle,))
        self.release()

    def release(self) -> None:
        for handle in self._left:
            if not handle.is_done:
                assert handle.group is not None
                handle.group.watch(handle, self)  # and so calls this again, perhaps at once
                return
        self.tell()

    def tell(self) -> None:
        with self._telling:
            if self._is_given_up:
                return
            self._is_told = True
            try:
                with tf.init_scope():
                    tf.raw_ops.QueueEnqueueV2(handle=_queue(self.token), components=[_news()])
            except Exception:  # in a thread that other ranks wait for
                logger.exception("hvdlite cannot tell TensorFlow that a collective has ended")

    def settle(self) -> None:
        """Waits for the results, or raises the error."""
        if self.error is not None:
            raise self.error
        if self.handle is not None:
            self.results = self._call.results(self._kind, self.handle, synchronize(self.handle))
            self.handle = None

    def give_up(self) -> bool:
        """Abandons the collective, and keeps `tell` from telling. True if it has told already."""
        with self._telling:
            self._is_given_up = True
            if self.handle is not None:
                abandon(self.handle)
            self.handle = None
            return self._is_told


def _empty(token: int) -> None:
    with tf.init_scope():
        for _ in range(int(tf.raw_ops.QueueSizeV2(handle=_queue(token)))):
            tf.raw_ops.QueueDequeueV2(handle=_queue(token), component_types=NEWS)


@cache
def _queue(token: int) -> Any:
    return queue_of(token)


@cache
def _news() -> Any:
    return tf.constant(True)
