"""Unnamed calls that a signal handler interrupts at every bytecode, while all ranks keep counting them alike."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import hvdlite as hvd
from hvdlite import session
from hvdlite.groups.group import Group
from tests.harness.interrupts import At, Interrupt, raise_interrupt

Call = Callable[[float], "float | None"]
"""Makes a call with this rank's value, and returns rank 0's, or None where that does not arrive."""

_INTERRUPTED, _AGAIN, _LAST = 1.0, 2.0, 3.0


def first(result: Any) -> float:
    """The first element of an array or tensor."""
    return float(result.reshape(-1)[0])


def calls_of(front: Any, rows: Callable[[float], Any]) -> dict[str, Call]:
    """The collectives that ``hvdlite`` and ``hvdlite.torch`` both have; ``rows(value)`` is two rows for each rank."""

    def on(rank: int, result: Any) -> float | None:
        return first(result) if front.rank() == rank else None

    def message_to(receiver: int) -> Call:
        """Between ranks 0 and 1."""

        def call(value: float) -> float | None:
            if front.rank() == receiver:
                received = front.recv(rows(0.0), 1 - receiver)
                return first(received) if receiver == 1 else None
            if front.rank() == 1 - receiver:
                front.send(rows(value), receiver)
            return None

        return call

    return {
        "allreduce": lambda value: first(front.allreduce(rows(value), op=front.Sum)),
        "allreduce_": lambda value: first(front.allreduce_(rows(value), op=front.Sum)),
        "a number": lambda value: front.allreduce(value, op=front.Sum),
        "asynchronous": lambda value: first(front.synchronize(front.allreduce_async_(rows(value), op=front.Sum))),
        "grouped_allreduce": lambda value: first(front.grouped_allreduce([rows(0.0), rows(value)], op=front.Sum)[1]),
        "grouped_reducescatter": lambda value: first(front.grouped_reducescatter([rows(value)] * 2, op=front.Sum)[1]),
        "grouped_allgather": lambda value: first(front.grouped_allgather([rows(value)] * 2)[1]),
        "allgather": lambda value: first(front.allgather(rows(value))),
        "broadcast": lambda value: first(front.broadcast(rows(value), 0)),
        "alltoall": lambda value: first(front.alltoall(rows(value))),
        "reducescatter": lambda value: first(front.reducescatter(rows(value), op=front.Sum)),
        "reduce": lambda value: on(1, front.reduce(rows(value), 1, op=front.Sum)),
        "gather": lambda value: on(1, front.gather(rows(value), 1)),
        "scatter": lambda value: first(front.scatter(rows(value), 0)),
        "send": message_to(1),
        "recv": message_to(0),
        "broadcast_object": lambda value: front.broadcast_object({"value": value})["value"],
        "allgather_object": lambda value: front.allgather_object({"value": value})[0]["value"],
    }


class _Submitted:
    """Counts the entries that turns have taken, and those that calls have run without a turn."""

    def __init__(self, group: Group) -> None:
        self._in_flight, self._calls = group._in_flight, group._calls
        self._take_new = self._in_flight.take_new
        self._number = 0
        self._in_flight.take_new = self._taken  # type: ignore[method-assign]
        if self._calls is not None:
            self._page = self._calls._page
            self._adopt = self._page.adopt
            self._page.adopt = self._adopted  # type: ignore[method-assign]

    def _taken(self) -> Any:
        new = self._take_new()
        self._number += len(new)
        return new

    def _adopted(self) -> bool:
        is_adopted = self._adopt()
        self._number += is_adopted
        return is_adopted

    def count(self) -> int:
        """The count, once it includes everything submitted, which is soon although this rank calls nothing more."""
        while self._in_flight._new or (self._calls is not None and self._calls._current):
            time.sleep(0)  # lets other threads of this rank run
        return self._number + (0 if self._calls is None else self._page.call.number)


def interrupt_everywhere(calls: Mapping[str, Call], step: int) -> dict[str, int]:
    """Returns the number of places in each call. Rank 0 is interrupted at every ``step``-th, and repeats the call.

    After each call rank 0 tells the others, in a named collective, the value with which it took part.
    """
    signal.signal(signal.SIGUSR1, raise_interrupt)
    places = {}
    for what, call in calls.items():
        number = _interrupting(what, call, step) if hvd.rank() == 0 else _following(what, call)
        assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == hvd.size()
        places[what] = number
    return places


def _interrupting(what: str, call: Call, step: int) -> int:
    submitted = _Submitted(session.current().everyone)
    number = 0
    while True:
        before, at = submitted.count(), At(number)
        with contextlib.suppress(Interrupt), at:
            call(_INTERRUPTED)
        if submitted.count() > before:
            _vote(_INTERRUPTED)
        given = _AGAIN if at.where else _LAST
        assert call(given) in (None, given), (what, at.where)
        _vote(given)
        if given == _LAST:
            return number
        number += step


def _following(what: str, call: Call) -> int:
    times, given = 0, 0.0
    while given != _LAST:
        result = call(0.0)
        given = _vote(0.0)
        assert result in (None, given), what
        times += 1
    return times


def _vote(given: float) -> float:
    return float(hvd.allreduce(np.array([given]), name="given", op=hvd.Sum)[0])
