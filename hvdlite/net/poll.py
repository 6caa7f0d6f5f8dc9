"""What a thread sleeps on: sockets, each with the function that handles its events, and points of time."""

from __future__ import annotations

import math
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

ENDED: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Poller:
    """Sockets are watched for events of `select.poll` until they are let go, which has to be before they are closed."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[int], None]] = {}

    def set(self, watched: socket.socket | int, events: int, handler: Callable[[int], None]) -> None:
        """From now on ``handler(events)`` is called for these events of the socket, and no other handler."""
        fd = watched if isinstance(watched, int) else watched.fileno()
        self._poll.register(fd, events)
        self._handlers[fd] = handler

    def let_go(self, watched: socket.socket | int) -> None:
        """Does nothing if it is not watched."""
        fd = watched if isinstance(watched, int) else watched.fileno()
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def close(self, watched: socket.socket) -> None:
        """Lets go of a connection and ends it, also where a forked child has a copy of its descriptor."""
        self.let_go(watched)
        with suppress(OSError):  # it may have ended already
            watched.shutdown(socket.SHUT_RDWR)
        watched.close()

    def sleep(self, until: float) -> None:
        """Sleeps until ``until`` (monotonic, possibly infinite) or an event, and calls the handlers of all events."""
        timeout = None if math.isinf(until) else max(0, math.ceil((until - time.monotonic()) * 1000))
        for fd, events in self._poll.poll(timeout):
            if (handler := self._handlers.get(fd)) is not None:  # an earlier handler may have let it go
                handler(events)
