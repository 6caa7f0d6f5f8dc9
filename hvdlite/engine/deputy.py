"""Drives for the main thread, in which Python runs signal handlers.

A handler may raise between any two steps of the main thread. In the middle of a turn, or of a batch, that would leave
this rank's state half changed. So the main thread never takes turns and never runs batches: while it waits, a thread of
ours drives for it (`hvdlite.groups.group`), and an exception ends the wait and nothing else.

The price is one switch from thread to thread at the beginning of a wait and one at its end. Both release the GIL before
they wake the other thread, which would otherwise be woken twice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from hvdlite.engine.inflight import InFlight
from hvdlite.negotiation.handle import Handle
from hvdlite.net.wake import Bell

_LOOK_S = 0.2  # a signal received by another thread does not interrupt this thread's system call


class Deputy:
    """The thread that drives for the main thread, until `stop`.

    ``drive`` is called in it with each handle that the main thread waits for, and ``wake`` in the main thread when it
    waits while ``drive`` is busy with what is not done: because that wait was interrupted, or a handler waits, too.
    """

    def __init__(self, in_flight: InFlight, drive: Callable[[Handle], None], wake: Callable[[], None]) -> None:
        self._in_flight = in_flight
        self._drive = drive
        self._wake = wake
        self._asked: deque[Handle] = deque()  # the next handle to drive for
        self._driven: Handle | None = None  # the handle it drives for, or will next
        self._call = Bell()
        self._bells = [Bell()]  # that no wait uses; the first is there even when descriptors have run out
        self._is_stopping = False
        self._thread = threading.Thread(target=self._serve, name="hvdlite-deputy", daemon=True)
        self._thread.start()  # here, because an interrupt of the first wait could leave it half started

    def wait(self, handle: Handle) -> None:
        """Returns when ``handle`` is done. For the main thread; a wait may be nested in another one."""
        bell = self._bells.pop() if self._bells else Bell()
        try:
            if not self._in_flight.watch(handle, bell):
                return
            # It is busy. The order of these checks matters, see `_serve`.
            if self._asked or ((driven := self._driven) is not None and not driven.is_done):
                self._wake()
            self._asked.append(handle)
            self._call.release()
            while not handle.is_done:
                bell.wait(_LOOK_S)
            if self._asked:  # it is busy with another handle, perhaps for ever
                self._forget(handle)
        finally:
            self._bells.append(bell)

    def _forget(self, handle: Handle) -> None:
        with suppress(ValueError):  # it was just taken
            self._asked.remove(handle)

    def stop(self, timeout_s: float) -> None:
        """Ends the thread once ``drive`` returns."""
        self._is_stopping = True
        self._call.release()
        self._thread.join(timeout_s)

    def close(self) -> None:
        """Closes the descriptors, except that of a wait to which a signal handler has not returned yet."""
        self._bells.clear()
        self._call.close()

    def _serve(self) -> None:
        while not self._is_stopping:
            self._call.wait()
            while self._asked and not self._is_stopping:
                self._driven = self._asked[0]  # before it leaves the queue, so that `wait` sees it here or there
                self._asked.popleft()
                self._drive(self._driven)
                self._driven = None
