"""What a plane has on a GPU: a stream, a communicator for it, and events."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final

from hvdlite.cuda.context import Context
from hvdlite.cuda.streams import Event, Stream
from hvdlite.planes.nccl.communicator import Communicator

_CLOSE_S: Final = 5.0


class Gpu:
    """The GPU that a plane uses, from its first collective on."""

    def __init__(self, ordinal: int, rank: int, size: int, unique: bytes, grace_s: float) -> None:
        with ExitStack() as undo:
            self.context = Context(ordinal)
            undo.callback(self.context.close)
            self.stream = Stream(self.context)
            undo.callback(self.stream.close)
            self.communicator = Communicator(self.context, self.stream, rank, size, unique, grace_s)
            undo.pop_all()
        self._events: list[Event] = []
        self.spare: list[Event] = []  # those that nobody uses

    def event(self) -> Event:
        """Returns the event of all that the stream has been given until now."""
        if not self.spare:
            self._events.append(Event(self.context))
            self.spare.append(self._events[-1])
        event = self.spare.pop()
        event.record(self.stream.handle)
        return event

    def close(self) -> None:
        """Frees everything, when the GPU is done or after some seconds."""
        self.communicator.close(time.monotonic() + _CLOSE_S)
        for event in self._events:
            event.close()
        self.stream.close()
        self.context.close()
