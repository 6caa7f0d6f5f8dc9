"""Collectives that graphs have started: whoever starts one gets a ticket, for which it hands out the results.

A graph waits for a ticket in TensorFlow's own `QueueDequeue`, which keeps no thread waiting. Every call has a queue,
and the end of a collective puts one element into it. If a graph runs twice at the same time, the news of one run may
reach the other; that one then waits for its own collective in a thread of TensorFlow.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import tensorflow as tf

from hvdlite.log import logger
from hvdlite.negotiation.handle import Handle
from hvdlite.ops import GroupHandle, synchronize
from hvdlite.tensorflow.errors import in_both, remember
from hvdlite.tensorflow.operation.calls import Call, Tensors, submit

NEWS: Final = [tf.bool]
"""The types of an element of a queue."""

_numbers: Final = itertools.count()
_tickets: Final[dict[int, _Ticket]] = {}


def queue_of(token: int) -> Any:
    """Returns the handle of the queue of a call: a tensor, or a node where a graph is built."""
    return tf.raw_ops.FIFOQueueV2(component_types=NEWS, shapes=[[]], shared_name=f"hvdlite.{token}")


def start(token: int, call: Call, kind: Tensors, tensors: Sequence[Any]) -> int:
    """Starts ``call`` and returns the number of its ticket. An error is raised by `finish`."""
    ticket = _Ticket(token, call, kind)
    number = next(_numbers)
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


def finish(number: int) -> list[Any]:
    """Returns the results of a ticket, which then is no more. Raises the error of the collective."""
    ticket = _tickets.pop(number)
    try:
        if ticket.error is not None:
            raise ticket.error
        assert ticket.handle is not None
        return ticket.call.results(ticket.kind, ticket.handle, synchronize(ticket.handle))
    except Exception as error:
        found = in_both(error)
        remember(found)
        raise found from error.__cause__


class _Ticket:
    """The waiter of a collective: `release` is called in threads of hvdlite as its tensors get done, one by one."""

    __slots__ = ("_left", "_token", "call", "error", "handle", "kind")

    def __init__(self, token: int, call: Call, kind: Tensors) -> None:
        self._token = token
        self.call = call
        self.kind = kind
        self.handle: Handle[Any] | GroupHandle[Any] | None = None
        self.error: Exception | None = None
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
        try:
            with tf.init_scope():
                tf.raw_ops.QueueEnqueueV2(handle=_queue(self._token), components=[_news()])
        except Exception:  # in a thread that other ranks wait for
            logger.exception("hvdlite cannot tell TensorFlow that a collective has ended")


@cache
def _queue(token: int) -> Any:
    return queue_of(token)


@cache
def _news() -> Any:
    return tf.constant(True)
