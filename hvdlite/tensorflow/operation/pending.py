"""Collectives that graphs have started: each start gets a ticket, which later gives the results.

A graph waits for a ticket in TensorFlow's own `QueueDequeue`: it blocks no thread, and ends when the graph fails
elsewhere. Each ticket in use has its own queue. At the end of the collective one element is put into the queue. The
start outputs the queue as a value. So waits cannot be mixed up, whether they are in one graph, in two concurrent runs
of it, or in a copy of it from a SavedModel. A session of TensorFlow 1 has its own resources and takes the element from
an iterator over the queue.

A run that fails elsewhere never takes its results. Each route notices when a run is over (`whose_runs_are_over`). The
next collective then gives up the tickets of such runs: a collective that is in flight stays so, for the other ranks,
its result is dropped, and the next call of its name is submitted when it is done.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
"""The types of the elements of queues."""

_numbers: Final = itertools.count(1)  # 0 is none
_queue_numbers: Final = itertools.count(1)
_tickets: Final[dict[int, Ticket]] = {}
_free: Final[list[Queue]] = []
"""Empty queues, for further tickets."""

whose_runs_are_over: Final[list[Callable[[], Iterable[int]]]] = []
"""A function for each route, which returns the numbers of tickets whose runs are over, each once."""


class Queue:
    """A queue of TensorFlow, for one ticket at a time: its handle, also serialized, so that any graph can parse it."""

    def __init__(self) -> None:
        with context.eager_mode():
            # TensorFlow shows the name if a session does not find the queue.
            name = f"hvdlite {next(_queue_numbers)}, of functions that were traced in eager execution"
            self.handle = tf.raw_ops.FIFOQueueV2(component_types=NEWS, shapes=[[]], shared_name=name)
            self._iterator: Any = None
            self.serialized: bytes = tf.raw_ops.SerializeTensor(tensor=self.handle).numpy()

    @property
    def iterator(self) -> Any:
        """An iterator over the elements of the queue."""
        with context.eager_mode():
            if self._iterator is not None and not self._is_sound():
                self._iterator = None
            if self._iterator is None:
                self._iterator = OwnedIterator(self._elements)
            return self._iterator._iterator_resource

    @cached_property
    def _elements(self) -> Any:
        handle = self.handle  # not `self`, or only the garbage collector would free the iterator's threads
        taken = tf.data.Dataset.from_tensors(0).repeat().map(lambda _: _dequeue(handle))
        options = tf.data.Options()
        options.autotune.enabled = options.experimental_optimization.apply_default_optimizations = False
        return taken.with_options(options)

    def _is_sound(self) -> bool:
        """False if the iterator is cancelled for good, as after a run that failed elsewhere while it waited."""
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
    """Starts the call of ``text`` (see `encoded`) and returns its ticket. `finish` raises its errors."""
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
        ticket.notify()
    else:
        ticket.follow(handle, call, kind)
    return ticket


def settle(number: int) -> None:
    """Takes the results of a ticket that has ended. Raises its error after removing the ticket."""
    ticket = _tickets[number]
    try:
        ticket.settle()
    except Exception as error:
        _leave(ticket)
        found = in_both(error)
        remember(found)
        raise found from error.__cause__


def finish(number: int) -> list[Any]:
    """Returns the results of a ticket and removes it. Raises what `settle` raises."""
    settle(number)
    ticket = _tickets[number]
    _leave(ticket)
    return ticket.results


def iterator_of(number: int) -> Any:
    """Returns the handle of an iterator whose next element comes when the collective of a ticket has ended."""
    return _tickets[number].queue.iterator


def give_up_ended() -> None:
    """Gives up the tickets of the runs that are over."""
    for numbers in whose_runs_are_over:
        for number in numbers():
            give_up(number)


def give_up(number: int) -> None:
    """Removes a ticket whose run is over, if it never took the results."""
    ticket = _tickets.pop(number, None)
    if ticket is None:
        return
    if ticket.give_up():
        ticket.queue.destroy()  # it has an element
    else:
        _free.append(ticket.queue)


@dataclass(slots=True, eq=False, repr=False)
class Ticket:
    """Waits for the tensors of a collective one by one: hvdlite's threads call `release` when one is done."""

    number: int
    queue: Queue
    handle: Handle[Any] | GroupHandle[Any] | None = None
    error: Exception | None = None
    results: list[Any] = field(default_factory=list)
    _call: Call = field(init=False)
    _kind: Tensors = field(init=False)
    _left: Iterator[Handle[Any]] = field(init=False)
    _notifying: threading.Lock = field(default_factory=threading.Lock)
    _has_untaken_news: bool = False
    _is_given_up: bool = False

    def follow(self, handle: Handle[Any] | GroupHandle[Any], call: Call, kind: Tensors) -> None:
        self._call, self._kind = call, kind
        self.handle = handle
        self._left = iter(handle.handles if isinstance(handle, GroupHandle) else (handle,))
        self.release()

    def release(self) -> None:
        for handle in self._left:
            if not handle.is_done:
                assert handle.group is not None
                handle.group.watch(handle, self)  # which calls `release` again, perhaps at once
                return
        self.notify()

    def notify(self) -> None:
        with self._notifying:
            if self._is_given_up:
                return
            self._has_untaken_news = True
            try:
                self.queue.put()
            except Exception:  # this thread must go on, because other ranks wait for it
                logger.exception("hvdlite cannot notify TensorFlow of the end of a collective")

    def settle(self) -> None:
        """Waits for the results, or raises the error."""
        self._has_untaken_news = False
        if self.error is not None:
            raise self.error
        if self.handle is not None:
            self.results = self._call.results(self._kind, self.handle, synchronize(self.handle))
            self.handle = None

    def give_up(self) -> bool:
        """Abandons the collective, and disables `notify`. Returns True if the queue has an element."""
        with self._notifying:
            self._is_given_up = True
            if self.handle is not None:
                abandon(self.handle)
            self.handle = None
            return self._has_untaken_news


def _leave(ticket: Ticket) -> None:
    """Removes a settled ticket, whose queue is empty."""
    del _tickets[ticket.number]
    _free.append(ticket.queue)


def _any_queue() -> Queue:
    with suppress(IndexError):
        return _free.pop()
    return Queue()


@cache
def _news() -> Any:
    return tf.constant(True)
