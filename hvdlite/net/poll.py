"""Waits for events of one descriptor, and a poll loop: descriptors, each with a handler, and deadlines."""

from __future__ import annotations

import math
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from hvdlite.scope import Scope

ENDED: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR


def comes(watched: socket.socket | int, events: int, within_s: float = 0.0) -> bool:
    """Waits for ``events`` of a descriptor or its end, ``within_s`` at most. Returns whether there were any.

    `select.select` would do the same but refuses descriptors from 1,024 on, which any large program may have.
    """
    poll = select.poll()
    poll.register(watched, events)
    return bool(poll.poll(math.ceil(within_s * 1000)))


def wait_readable(sock: socket.socket, scope: Scope) -> None:
    """Returns when ``sock`` has data or has ended. Raises TimeoutError at the end of ``scope``, or Cancelled."""
    while not comes(sock, select.POLLIN):  # first, because data counts even if the scope is over
        if comes(sock, select.POLLIN, scope.pause_s()):
            return
        if scope.is_over:
            raise TimeoutError("timed out")


class Poller:
    """Calls handlers for events of `select.poll`. A descriptor must be let go before it is closed."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[int], None]] = {}

    def set(self, watched: socket.socket | int, events: int, handler: Callable[[int], None]) -> None:
        """Calls ``handler(events)`` for these events from now on, in place of any earlier handler."""
        fd = watched if isinstance(watched, int) else watched.fileno()
        self._poll.register(fd, events)
        self._handlers[fd] = handler

    def let_go(self, watched: socket.socket | int) -> None:
        """Forgets a descriptor, if it is known."""
        fd = watched if isinstance(watched, int) else watched.fileno()
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def close(self, watched: socket.socket) -> None:
        """Lets go of a connection and ends it, even if a forked child has a copy of its descriptor."""
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
