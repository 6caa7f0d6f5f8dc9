"""Takes turns and runs batches for the main thread, in which Python runs signal handlers.

A handler may raise between any two steps of the main thread. In the middle of a turn or of a batch, that would leave
this rank's state half changed. So the main thread never takes turns and never runs batches. It appends its handle to a
queue, which is one atomic step, rings the bell of a thread of the group, and waits on a bell of its own. That thread
drives (`hvdlite.groups.group`) while the main thread waits, so an exception ends the wait and nothing else.

The price is one switch between threads at the beginning of a wait and one at its end. Each thread releases the GIL
before it wakes the other one, which would otherwise wake twice.

The same thread continues *chained* calls. Such a call needs several collectives, each of which needs the result of the
one before. The other ranks run all of them, so this rank must too, even if a signal handler interrupts the call. The
caller therefore submits the first collective together with the *rest*, a function that makes the further calls. Rests
run in the order in which their first collectives are done, which is the same on all ranks. They run before the thread
drives for anything else, because other ranks may wait for them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from hvdlite.engine.apart import POLL_S, wait_briefly
from hvdlite.engine.inflight import InFlight
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.handle import Handle, Waiter
from hvdlite.net.wake import Bell
from hvdlite.scope import Scope

T = TypeVar("T")


class Drive:
    """The waiter of a thread that drives for ``handle``. It is done once it is released, which ends the driving.

    `release` also releases ``driver``, which wakes the thread if it sleeps on the control link.
    """

    is_done = False
    _gate: threading.Lock | None = None  # made by `sleep`

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
        """Sleeps until released, while another thread drives."""
        gate = threading.Lock()
        gate.acquire()
        self._gate = gate  # set before `is_done` is read: `release` sets `is_done` before it reads the gate
        if not self.is_done:
            gate.acquire()


class MainThreadDriver:
    """The thread that drives for the main thread in one group, until `stop`.

    ``drive`` is called in this thread with each `Drive`, whose driver is ``driver``, and returns when the `Drive` is
    done. ``run`` submits an entry and returns when it is done. ``wake`` wakes the coordinator's thread. The main thread
    calls it when it waits while this thread is busy with another handle, because an earlier wait was interrupted or
    because a signal handler waits.
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
        self._to_drive: deque[Handle] = deque()  # handles of the main thread's waits
        self._rests: deque[_Rest] = deque()
        self._current: Drive | _Rest | None = None  # in progress, or next
        self._bell = Bell()
        self._bells = [Bell()]  # unused ones; made now, so that one wait works even when descriptors have run out
        self._made = 1  # bells
        self._is_stopping = self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="hvdlite-main-driver", daemon=True)
        self._thread.start()  # here, because an interrupt of the first wait could leave the thread half started

    # ---- the main thread

    def wait(self, handle: Handle) -> None:
        """Returns when ``handle`` is done. For the main thread. A signal handler may wait inside of another wait."""
        try:
            bell = self._bells.pop()
        except IndexError:  # other waits have the bells, or `close` has cleared the list
            bell = Bell()
            self._made += 1
        try:
            if not self._in_flight.watch(handle, bell):
                return
            # This order matters: `_drive_next` sets `_current` before it takes the handle from the queue.
            if self._to_drive or not ((current := self._current) is None or current.is_done):
                self._wake()
            self._to_drive.append(handle)
            self._bell.release()
            while not handle.is_done:
                bell.wait(POLL_S)
            if self._to_drive:  # the thread is busy with another handle, perhaps for ever
                with suppress(ValueError):  # the thread has just taken it
                    self._to_drive.remove(handle)
        finally:
            self._bells.append(bell)
            if self._is_closed:
                self.close()

    def run_chained(self, first: Entry, rest: Callable[[], T]) -> T:
        """Submits ``first``, waits for it, calls ``rest``, and returns its result or raises its error.

        If a signal handler raises in the main thread meanwhile, either nothing was submitted, or ``rest`` still runs.
        """
        if threading.get_ident() != threading.main_thread().ident:
            self._run(first)
            return rest()
        later = _Rest(rest, self._add_rest)
        try:
            self._in_flight.watch(first, later)
            self._run(first)
        except BaseException:
            self._in_flight.unwatch(first)
            raise
        while not wait_briefly(later.is_over):
            pass
        if later.error is not None:
            raise later.error
        result: T = later.result
        return result

    # ---- any thread

    def _add_rest(self, rest: _Rest) -> None:
        self._rests.append(rest)
        if isinstance(current := self._current, Drive):
            current.release()
        self._bell.release()
        if self._is_stopping:
            self._run_rests()

    def stop(self, scope: Scope) -> None:
        """Ends the thread, and waits for it in ``scope``. Call it after the end of the group."""
        self._is_stopping = True
        if isinstance(current := self._current, Drive):
            current.release()
        self._bell.release()
        self._thread.join(scope.timeout_s)

    def close(self) -> None:
        """Closes the descriptors: now, or when the last wait ends to which a signal handler has not returned yet."""
        self._is_closed = True
        if len(self._bells) == self._made:  # no wait has one
            self._bell.close()
            self._bells.clear()
            self._made = 0

    # ---- its own thread

    def _serve(self) -> None:
        while not self._is_stopping:
            self._bell.wait()
            while not self._is_stopping:
                if self._rests:
                    self._run_rests()
                if not self._to_drive:
                    break
                self._drive_next()
        self._run_rests()

    def _drive_next(self) -> None:
        """Drives for one wait. A separate function, so that the sleeping thread keeps no handle alive."""
        try:
            drive = Drive(self._to_drive[0], self._driver)
            self._current = drive  # before its handle leaves the queue, so that `wait` sees it in one of the two
            self._to_drive.remove(drive.handle)
        except (IndexError, ValueError):  # its wait has just ended
            self._current = None
            return
        if self._in_flight.watch(drive.handle, drive) and not self._rests:  # read after `_current` is set
            self._drive(drive)
        self._current = None
        if not drive.handle.is_done:  # a rest interrupted the driving
            self._to_drive.appendleft(drive.handle)

    def _run_rests(self) -> None:
        """Runs the rests that are due. Once the group has ended, any thread may call it."""
        while self._rests:
            try:
                self._current = rest = self._rests.popleft()
            except IndexError:  # another thread has taken it
                return
            rest.run()
            self._current = None


class _Rest:
    """The rest of a chained call. It is the waiter of the first collective."""

    def __init__(self, function: Callable[[], Any], add: Callable[[_Rest], None]) -> None:
        self._function = function
        self._add = add
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_over = threading.Lock()
        self.is_over.acquire()

    def release(self) -> None:
        self._add(self)

    def run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # the caller raises it
            self.error = error
        finally:
            self.is_done = True
            self.is_over.release()
