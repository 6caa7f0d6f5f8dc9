"""Calls of several collectives, each of which needs the result of the one before.

Other ranks wait for all parts of such a call, also when a signal handler interrupts it on this one. So the caller
submits the first part, together with what follows it; a thread of the group does that when the part is done, and the
caller waits. What follows is done in the order in which first parts are done, which is the same on all ranks: each part
of an interrupted call comes before that of the next one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from hvdlite.engine.apart import is_seen
from hvdlite.engine.inflight import InFlight
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.handle import Handle

T = TypeVar("T")


class Parts:
    """The calls of one group, until `stop`."""

    def __init__(self, in_flight: InFlight, run: Callable[[Entry], Handle]) -> None:
        self._in_flight = in_flight
        self._run = run
        self._due: queue.SimpleQueue[_Rest | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None  # from the first call on
        self._is_stopping = False
        self._lock = threading.Lock()  # the main thread takes it only to stop

    def run(self, first: Entry, rest: Callable[[], T]) -> T:
        """Submits ``first``, waits for it, and returns what ``rest`` returns or raises then.

        If a signal handler raises in the main thread meanwhile, either nothing was submitted, or all goes on.
        """
        if threading.get_ident() != threading.main_thread().ident:
            self._run(first)
            return rest()
        later = _Rest(rest, self._put)
        try:
            self._in_flight.watch(first, later)
            self._run(first)
        except BaseException:
            self._in_flight.unwatch(first)
            raise
        while not is_seen(later.is_over):
            pass
        if later.error is not None:
            raise later.error
        result: T = later.result
        return result

    def stop(self, timeout_s: float) -> None:
        """Ends the thread after the end of the group, when all that is still to be done fails at once."""
        with self._lock:
            self._is_stopping = True
            thread = self._thread
        self._due.put(None)
        if thread is not None:
            thread.join(timeout_s)

    def _put(self, rest: _Rest) -> None:
        with self._lock:
            if not self._is_stopping:
                self._due.put(rest)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name="hvdlite-parts", daemon=True)
                    self._thread.start()
                return
        rest.do()

    def _serve(self) -> None:
        while (rest := self._due.get()) is not None:
            rest.do()


class _Rest:
    """The rest of a call, as the waiter of its first part."""

    def __init__(self, function: Callable[[], Any], put: Callable[[_Rest], None]) -> None:
        self._function = function
        self._put = put
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_over = threading.Lock()
        self.is_over.acquire()

    def release(self) -> None:
        self._put(self)

    def do(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # the caller raises it
            self.error = error
        finally:
            self.is_over.release()
