"""Works for the main thread, in which Python runs signal handlers.

A handler may raise between any two steps of the main thread. In the middle of a turn, or of a batch, that would leave
this rank's state half changed. So the main thread never takes turns and never runs batches. It appends to a queue,
which is one atomic step, rings a bell, and waits on its own bell. A thread of the group does the rest: it drives
(`hvdlite.groups.group`) while the main thread waits, and continues calls of several collectives. So an exception ends a
wait and nothing else.

The price is one switch from thread to thread at the beginning of a wait and one at its end. Both release the GIL before
they wake the other thread, which would otherwise be woken twice.

Calls of several collectives are *chained*: each collective needs the result of the one before, and other ranks wait for
all of them, also when a signal handler interrupts the call on this one. So the caller submits the first, together with
what follows it, which is due when that is done. It is done in the order in which first collectives are done, which is
the same on all ranks, and before all driving, since it may be what other ranks wait for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from hvdlite.engine.apart import is_seen
from hvdlite.engine.inflight import InFlight
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.handle import Handle, Waiter
from hvdlite.net.wake import Bell

T = TypeVar("T")

_LOOK_S: Final = 0.2  # a signal received by another thread does not interrupt this thread's system call


class Drive:
    """The waiter of a thread that drives for ``handle``. It is done when the handle is, or when it is released.

    ``driver`` is released after it: that wakes the thread if it sleeps on the control link.
    """

    is_done = False
    _gate: threading.Lock | None = None  # only where it is slept on

    def __init__(self, handle: Handle, driver: Waiter) -> None:
        self.handle = handle
        self._driver = driver

    def release(self) -> None:
        self.is_done = True
        if (gate := self._gate) is not None:
            with suppress(RuntimeError):  # it was released before
                gate.release()
        self._driver.release()

    def sleep(self) -> None:
        """Sleeps until it is released, while another thread drives."""
        gate = threading.Lock()
        gate.acquire()
        self._gate = gate  # before the look, since `release` does it the other way round
        if not self.is_done:
            gate.acquire()


class MainThreadDriver:
    """The thread that works for the main one in a group, until `stop`.

    ``drive`` is called in it with each `Drive`, whose driver is ``driver``, and returns when that is done. ``wake`` is
    called in the main thread when that waits while the thread works at what is not done: because an earlier wait was
    interrupted, or a handler waits, too. ``run`` submits an entry and returns when it is done.
    """

    def __init__(
        self,
        in_flight: InFlight,
        drive: Callable[[Drive], None],
        driver: Waiter,
        wake: Callable[[], None],
        run: Callable[[Entry], Handle],
    ) -> None:
        self._in_flight = in_flight
        self._drive = drive
        self._driver = driver
        self._wake = wake
        self._run = run
        self._asked: deque[Handle] = deque()  # the next handle to drive for
        self._due: deque[_Rest] = deque()
        self._doing: Drive | _Rest | None = None  # what it does, or will do next
        self._call = Bell()
        self._bells = [Bell()]  # that no wait uses; the first is there even when descriptors have run out
        self._is_stopping = False
        self._thread = threading.Thread(target=self._serve, name="hvdlite-main-driver", daemon=True)
        self._thread.start()  # here, because an interrupt of the first wait could leave it half started

    # ---- the main thread

    def wait(self, handle: Handle) -> None:
        """Returns when ``handle`` is done. For the main thread; a wait may be nested in another one."""
        bell = self._bells.pop() if self._bells else Bell()
        try:
            if not self._in_flight.watch(handle, bell):
                return
            # The order of these steps matters, see `_serve`.
            if self._asked or not ((doing := self._doing) is None or doing.is_done):
                self._wake()
            self._asked.append(handle)
            self._call.release()
            while not handle.is_done:
                bell.wait(_LOOK_S)
            if self._asked:  # it is busy with another handle, perhaps for ever
                with suppress(ValueError):  # it was just taken
                    self._asked.remove(handle)
        finally:
            self._bells.append(bell)

    def run_chained(self, first: Entry, rest: Callable[[], T]) -> T:
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

    # ---- any thread

    def _put(self, rest: _Rest) -> None:
        self._due.append(rest)
        if isinstance(doing := self._doing, Drive):
            doing.release()
        self._call.release()
        if self._is_stopping:
            self._do_rests()

    def stop(self, timeout_s: float) -> None:
        """Ends the thread once it is done with what it does, which fails at once after the end of the group."""
        self._is_stopping = True
        if isinstance(doing := self._doing, Drive):
            doing.release()
        self._call.release()
        self._thread.join(timeout_s)

    def close(self) -> None:
        """Closes the descriptors, except that of a wait to which a signal handler has not returned yet."""
        self._bells.clear()
        self._call.close()

    # ---- its own thread

    def _serve(self) -> None:
        while not self._is_stopping:
            self._call.wait()
            while not self._is_stopping:
                if self._due:
                    self._do_rests()
                if not self._asked:
                    break
                self._drive_next()
        self._do_rests()

    def _drive_next(self) -> None:
        """Drives for one wait. A function of its own, since the sleeping thread must not keep a handle alive."""
        try:
            drive = Drive(self._asked[0], self._driver)
            self._doing = drive  # before its handle leaves the queue, so that `wait` sees it here or there
            self._asked.remove(drive.handle)
        except (IndexError, ValueError):  # its wait has just ended
            self._doing = None
            return
        if self._in_flight.watch(drive.handle, drive) and not self._due:  # asked last, see `_put`
            self._drive(drive)
        self._doing = None
        if not drive.handle.is_done:  # something is due
            self._asked.appendleft(drive.handle)

    def _do_rests(self) -> None:
        """Does what is due. At the end of the group any thread may do that."""
        while self._due:
            try:
                self._doing = rest = self._due.popleft()
            except IndexError:  # another thread has taken it
                return
            rest.do()
            self._doing = None


class _Rest:
    """The rest of a call, as the waiter of its first collective."""

    def __init__(self, function: Callable[[], Any], put: Callable[[_Rest], None]) -> None:
        self._function = function
        self._put = put
        self.is_done = False
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
            self.is_done = True
            self.is_over.release()
