"""Collectives that graphs have started: whoever starts one gets a ticket, for which it hands out the results.

A graph waits for a ticket in TensorFlow's own `QueueDequeue`: it keeps no thread waiting, and ends when the graph fails
elsewhere. Each ticket in use has a queue of its own, and the end of its collective puts one element into it. The start
passes the queue on as a value. So no two waits can be mixed up, whether they are in one graph, in two runs of it at
once, or in a copy of it that a SavedModel has brought back. A session of TensorFlow 1 has resources of its own and
takes the element from an iterator over the queue.

A run that fails elsewhere never asks for its results. Either route notices when a run is over (`whose_runs_are_over`).
Before the next collective its tickets are given up: what is still in flight stays so, for the other ranks, its result
is dropped, and the next call of that name is submitted when it is done.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.eager import context

from hvdlite.log import logger
from hvdlite.ops import GroupHandle, Handle, abandon, synchronize
from hvdlite.tensorflow.operation.calls import Call, Tensors, decoded, submit
from hvdlite.tensorflow.operation.errors import in_both, remember
from hvdlite.tensorflow.operation.graphs import refuse_repeated

NEWS: Final = [tf.bool]
"""The types of an element of a queue."""

_numbers: Final = itertools.count(1)  # 0 is none
_queue_numbers: Final = itertools.count(1)
_tickets: Final[dict[int, Ticket]] = {}
_free: Final[list[Queue]] = []
"""Empty queues of tickets that are no more."""

whose_runs_are_over: Final[list[Callable[[], Iterable[int]]]] = []
"""Return the numbers of tickets, each once. One function for each route."""


class Queue:
    """A queue of TensorFlow, for one ticket at a time: its handle, and that serialized, which any graph can parse."""

    def __init__(self) -> None:
        with context.eager_mode():
            # TensorFlow says the name to whoever looks for it in a session.
            name = f"hvdlite {next(_queue_numbers)}, of functions that were traced in eager execution"
            self.handle = tf.raw_ops.FIFOQueueV2(component_types=NEWS, shapes=[[]], shared_name=name)
            self._iterator: Any = None
            self.serialized: bytes = tf.raw_ops.SerializeTensor(tensor=self.handle).numpy()

    @property
    def iterator(self) -> Any:
        """An iterator whose elements are those of the queue."""
        with context.eager_mode():
            if self._iterator is not None and not self._is_sound():
                self._iterator = None
            if self._iterator is None:
                self._iterator = OwnedIterator(self._elements)
            return self._iterator._iterator_resource

    @cached_property
    def _elements(self) -> Any:
        handle = self.handle  # the function must not refer to this object, or only the collector frees the threads
        taken = tf.data.Dataset.from_tensors(0).repeat().map(lambda _: _dequeue(handle))
        options = tf.data.Options()
        options.autotune.enabled = options.experimental_optimization.apply_default_optimizations = False
        return taken.with_options(options)

    def _is_sound(self) -> bool:
        """False if the iterator is cancelled for good, as it is if a run fails elsewhere while it waits for it."""
        self.put()
        try:
            tf.raw_ops.IteratorGetNext(
                iterator=self._iterator._iterator_resource, output_types=NEWS, output_shapes=[[]]
            )
        except tf.errors.CancelledError:
            _dequeue(self.handle)
            return False
        return True

    def put(self) -> None:
        with context.eager_mode():
            tf.raw_ops.QueueEnqueueV2(handle=self.handle, components=[_news()])

    def destroy(self) -> None:
        with context.eager_mode():
            tf.raw_ops.DestroyResourceOp(resource=self.handle, ignore_lookup_error=True)


def _dequeue(handle: Any) -> Any:
    return tf.raw_ops.QueueDequeueV2(handle=handle, component_types=NEWS)[0]


def start(text: bytes, kind: Tensors, tensors: Sequence[Any]) -> Ticket:
    """Starts the call that ``text`` stands for and returns its ticket. An error is raised by `finish`."""
    give_up_ended()
    ticket = Ticket(next(_numbers), _any_queue())
    _tickets[ticket.number] = ticket
    try:
        refuse_repeated(text)
        call = decoded(text)
        handle = call.draft(kind, tensors)
        submit(handle)
    except Exception as error:
        ticket.error = error
        ticket.tell()
    else:
        ticket.follow(handle, call, kind)
    return ticket


def settle(number: int) -> None:
    """Takes the results of a ticket of which there is news. Raises its error, and then the ticket is no more."""
    ticket = _tickets[number]
    try:
        ticket.settle()
    except Exception as error:
        _leave(ticket)
        found = in_both(error)
        remember(found)
        raise found from error.__cause__


def finish(number: int) -> list[Any]:
    """Returns the results of a ticket, which then is no more. Raises what `settle` raises."""
    settle(number)
    ticket = _tickets[number]
    _leave(ticket)
    return ticket.results


def iterator_of(number: int) -> Any:
    """Returns the handle of an iterator whose next element comes when there is news of a ticket."""
    return _tickets[number].queue.iterator


def give_up_ended() -> None:
    """Gives up the tickets of the runs that are over."""
    for numbers in whose_runs_are_over:
        for number in numbers():
            give_up(number)


def give_up(number: int) -> None:
    """Lets go of a ticket whose run is over, if it never asked for the results."""
    ticket = _tickets.pop(number, None)
    if ticket is None:
        return
    if ticket.give_up():
        ticket.queue.destroy()  # the news may be in it
    else:
        _free.append(ticket.queue)


class Ticket:
    """The waiter of a collective: `release` is called in threads of hvdlite as its tensors get done, one by one."""

    __slots__ = (
        "_call",
        "_has_untaken_news",
        "_is_given_up",
        "_kind",
        "_left",
        "_telling",
        "error",
        "handle",
        "number",
        "queue",
        "results",
    )

    def __init__(self, number: int, queue: Queue) -> None:
        self._telling = threading.Lock()
        self._has_untaken_news = self._is_given_up = False
        self.number = number
        self.queue = queue
        self.handle: Handle[Any] | GroupHandle[Any] | None = None
        self.error: Exception | None = None
        self.results: list[Any] = []
        self._left: Iterator[Handle[Any]] = iter(())

    def follow(self, handle: Handle[Any] | GroupHandle[Any], call: Call, kind: Tensors) -> None:
        self._call, self._kind = call, kind
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
            self._has_untaken_news = True
            try:
                self.queue.put()
            except Exception:  # in a thread that other ranks wait for
                logger.exception("hvdlite cannot tell TensorFlow that a collective has ended")

    def settle(self) -> None:
        """Waits for the results, or raises the error."""
        self._has_untaken_news = False
        if self.error is not None:
            raise self.error
        if self.handle is not None:
            self.results = self._call.results(self._kind, self.handle, synchronize(self.handle))
            self.handle = None

    def give_up(self) -> bool:
        """Abandons the collective, and keeps `tell` from telling. True if it has told and nobody has settled."""
        with self._telling:
            self._is_given_up = True
            if self.handle is not None:
                abandon(self.handle)
            self.handle = None
            return self._has_untaken_news


def _leave(ticket: Ticket) -> None:
    """Ends a ticket that is settled, whose queue so is empty."""
    del _tickets[ticket.number]
    _free.append(ticket.queue)


def _any_queue() -> Queue:
    with suppress(IndexError):
        return _free.pop()
    return Queue()


@cache
def _news() -> Any:
    return tf.constant(True)
