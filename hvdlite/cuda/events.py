"""Events of one GPU, which are reused."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Iterable

from hvdlite.cuda.context import Context
from hvdlite.cuda.streams import Event


class Events:
    """The events of GPU ``ordinal`` that one plane uses. Any thread may `record`."""

    def __init__(self, ordinal: int) -> None:
        self.context = Context(ordinal)
        self._made: list[Event] = []
        self._spare: list[Event] = []  # unused
        self._numbers = itertools.count()

    def record(self, stream: int) -> Moment:
        """Returns the moment at which ``stream``, one of hvdlite's, will have done its work until now."""
        moment = self._next(stream)
        moment.event.record(ctypes.c_void_p(stream))
        return moment

    def record_callers(self, stream: int) -> Moment:
        """Does as `record` for a stream of the program. Raises ValueError if a graph captures it."""
        moment = self._next(stream)
        moment.event.record_callers(ctypes.c_void_p(stream))
        return moment

    def _next(self, stream: int) -> Moment:
        try:
            event = self._spare.pop()
        except IndexError:
            event = Event(self.context)
            self._made.append(event)
        return Moment(event, self._spare, ((stream, threading.get_ident()), next(self._numbers)))

    def close(self) -> None:
        """Frees the events, also of moments that are still there. May be called twice."""
        for event in self._made:
            event.close()
        self.context.close()


class Moment:
    """An event for as long as this object lives. Then another moment reuses the event."""

    __slots__ = ("_spare", "event", "order")

    def __init__(self, event: Event, spare: list[Event], order: tuple[tuple[int, int], int]) -> None:
        self.event = event
        self.order = order
        self._spare = spare

    def __del__(self) -> None:
        self._spare.append(self.event)


def latest(moments: Iterable[Moment]) -> list[Moment]:
    """Returns the last of ``moments`` of each thread in each stream; when these have passed, so have all."""
    found: dict[tuple[int, int], Moment] = {}
    for moment in moments:
        place, number = moment.order
        if place not in found or found[place].order[1] < number:
            found[place] = moment
    return list(found.values())
