"""The threads of a rank and their work, from the first submit to the shutdown.

The coordinator's thread sleeps until a message comes or something was submitted, and takes a turn; the executor's
thread runs the batches. That is how tensors move beside a computation. A thread that has nothing to do but wait for a
result *drives* instead: it takes the turns and runs the batches itself, and sleeps on the control link while the
coordinator's thread does not look there. So a blocking collective switches between no threads on its way, which is most
of its time. While a driver is inside a native call, the coordinator's thread watches the peers again. For the main
thread, which signal handlers interrupt, a `Deputy` drives.

One thread drives at a time; others that wait sleep until their handle is done.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from hvdlite.control.link import ControlLink
from hvdlite.engine.coordinator import Coordinator
from hvdlite.engine.deputy import Deputy
from hvdlite.engine.executor import Executor
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer, Statistics
from hvdlite.engine.parts import Parts
from hvdlite.errors import HvdError, ShutDown
from hvdlite.log import logger
from hvdlite.members.membership import Membership
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.handle import Handle
from hvdlite.negotiation.messages import End, EndKind, Tuning
from hvdlite.negotiation.wire import ProtocolError
from hvdlite.net.wake import Wake
from hvdlite.planes.base import Planes
from hvdlite.settings import Settings

_STOP_S = 5.0  # for a thread that is about to end


class _Driver:
    """The waiter of a handle whose thread drives: releasing it wakes the driver if it may be asleep."""

    def __init__(self) -> None:
        self.wake = Wake()
        self.is_asleep = False

    def release(self) -> None:
        if self.is_asleep:
            self.wake.set()


class Engine:
    """A rank's threads in one group and the state that they share, until `shut_down`.

    ``submit``, ``submit_all``, ``watch`` and ``burst`` are those of `InFlight`, and ``run_parts`` is
    `Parts.run`. ``known`` is the cache's entry for each name, and ``planes`` are those of the group.
    """

    def __init__(
        self,
        membership: Membership,
        options: Settings,
        link: ControlLink,
        planes: Planes,
        on_end: Callable[[End], None],
    ) -> None:
        """Takes over ``link`` and ``planes``.

        ``on_end`` is called once, in the middle of a turn, with what ended the group: it must not wait.
        """
        self._rank = membership.number
        self._heartbeat_s = options.heartbeat_interval
        self._link = link
        self._inbox = link.inbox
        self.planes = planes
        self._in_flight = InFlight(self._inbox.wake.set)
        self.burst = self._in_flight.burst
        self._on_end = on_end
        self._turns = 0
        self._ended_in_turn = math.inf
        self.observer = Observer(self._in_flight, membership.leader_of)
        self._executor = Executor(planes, self._in_flight, self.observer, self._batches_are_done, self._batch_failed)
        self._coordinator = Coordinator(
            membership, options, link, planes, self._in_flight, self._executor, self.observer, self._end_came
        )
        self.submit = self._in_flight.submit
        self.submit_all = self._in_flight.submit_all
        self.watch = self._in_flight.watch
        self.known = self._coordinator.known
        self._turn_lock = threading.Lock()
        self._driving = threading.Lock()
        self._driver = _Driver()
        self._deputy = Deputy(self._in_flight, self._wait, self._inbox.wake.set)
        self._parts = Parts(self._in_flight, self.run)
        self.run_parts = self._parts.run
        self._main_thread = threading.main_thread().ident
        self._watches: list[None] = []  # one for each `watching_peers`
        self._is_alert = False  # the coordinator's thread checks the peers every heartbeat
        self._mail: deque[Callable[[], None]] = deque()  # actions of other threads, done in a turn
        self._is_stopping = False
        self._thread = threading.Thread(target=self._serve, name="hvdlite-coordinator", daemon=True)
        self._thread.start()

    def run(self, entry: Entry) -> Handle:
        """Submits ``entry`` and returns the caller's handle when it is done."""
        self.run_all((entry,))
        return entry

    def run_all(self, entries: Sequence[Entry]) -> None:
        """Submits ``entries``, all or none, and returns when they are done.

        If a signal handler raises meanwhile, they are in flight without a waiter, or were not submitted.
        """
        try:
            self._in_flight.submit_all(entries, will_wait=True)
            for entry in entries:
                if not entry.is_done:
                    self.wait(entry)
        except BaseException:  # perhaps before any thread has seen the entries
            self._inbox.wake.set()
            raise

    def wait(self, handle: Handle) -> None:
        """Waits until ``handle`` is done. Always ends: peers that die or stall end the session, and so the handle.

        An exception of a signal handler in the main thread ends the wait, and changes nothing else.
        """
        if threading.get_ident() == self._main_thread:
            self._deputy.wait(handle)
        else:
            self._wait(handle)
            if not handle.is_done:  # the process is about to end
                self._in_flight.wait(handle)

    def _wait(self, handle: Handle) -> None:
        if self._driving.acquire(blocking=False):
            try:
                self._drive(handle)
            finally:
                self._driving.release()
        else:
            self._inbox.wake.set()
            self._in_flight.wait(handle)

    def end(self, end: End) -> None:
        """Makes the next turn end the group, for all its ranks, because another group ended. Any thread may call it."""
        self._post(partial(self._coordinator.end, end))

    @contextmanager
    def watching_peers(self) -> Iterator[None]:
        """A context in which this rank watches its peers although nothing is in flight here."""
        self._watches.append(None)
        self._inbox.wake.set()
        try:
            yield
        finally:
            self._watches.pop()

    def tune(self, tuning: Tuning) -> None:
        """Applies ``tuning`` on all ranks from the next run on. Raises ValueError unless this rank is the root."""
        self._coordinator.tune(tuning)

    @property
    def tuning(self) -> Tuning | None:
        """Returns what the root has chosen, if anything has run yet. Any thread may read it."""
        return self._coordinator.tuning

    def statistics(self) -> Statistics:
        """Returns this rank's statistics of the group. Any thread may call it, at any time."""
        return self.observer.statistics(self.planes)

    @property
    def ended_by(self) -> End | None:
        """Returns what ended the group, if it has ended."""
        return self._coordinator.ended_by

    def shut_down(self, deadline: float, kind: EndKind = EndKind.LEFT) -> None:
        """Leaves the group: tensors not agreed yet fail on all ranks, agreed ones still run.

        ``kind`` is the end that the others hear of, one of `ORDERLY`. ``deadline`` is on the monotonic clock.
        """
        self._post(partial(self._coordinator.leave, kind))
        self._coordinator.has_ended.wait(max(0.0, deadline - time.monotonic()))
        if not self._executor.close(deadline):
            self.planes.abort(ShutDown(self._rank, f"rank {self._rank} shut down while a batch was running"))
            self._executor.close(time.monotonic() + 1)
        self._stop()
        self._parts.stop(_STOP_S)
        with self._driving:  # whoever drives sees its handle end
            self._link.close()
            self.planes.close()
            self._driver.wake.close()
            self._deputy.close()

    def forget(self, error: HvdError) -> None:
        """Fails everything in flight with ``error``, in a forked child, which has none of the threads."""
        self._in_flight.forget(error)

    def stop_at_exit(self, deadline: float) -> None:
        """Ends the threads of a process that is about to exit. Sends no message: peers notice the exit.

        Agreed batches may still finish, and their data is delivered. So is the end of the group if there was one;
        otherwise peers would take this exit for its cause.
        """
        is_idle = self._executor.close(deadline)
        if not is_idle:
            self.planes.abort(ShutDown(self._rank, f"rank {self._rank} is exiting"))
            is_idle = self._executor.close(time.monotonic() + 1)
        self._stop()
        if is_idle:
            if self.ended_by is not None:
                with self._driving:
                    self._link.close()
            self.planes.close()

    def _stop(self) -> None:
        self._is_stopping = True
        self._inbox.wake.set()
        self._driver.wake.set()
        self._thread.join(_STOP_S)
        self._deputy.stop(_STOP_S)

    # ---- the coordinator's thread

    def _serve(self) -> None:
        while not self._is_stopping:
            turns = self._turns
            self._inbox.sleep(self._milliseconds_to_sleep(self._is_alert))
            self._is_alert = bool(self._in_flight or self._watches or self._executor.is_issuing) or self._turns != turns
            self._turn()
            self._executor.wake()

    def _turn(self) -> None:
        with self._turn_lock:
            self._turns += 1
            try:
                self._coordinator.turn()
                while self._mail:
                    self._mail.popleft()()
            except Exception as error:  # whatever it is, the waiting handles must fail with it
                cause = str(error)
                if not isinstance(error, ProtocolError):
                    logger.exception("the coordinator failed")
                    cause = f"its coordinator failed: {type(error).__name__}: {error}"
                if self._ended_in_turn < self._turns:
                    self._is_stopping = True  # not even the end can be told
                else:
                    self._coordinator.fail(cause)

    def _end_came(self, end: End) -> None:
        self._ended_in_turn = self._turns
        self._on_end(end)

    def _post(self, act: Callable[[], None]) -> None:
        """Calls ``act`` in the next turn, after the messages of other ranks."""
        self._mail.append(act)
        self._inbox.wake.set()

    def _milliseconds_to_sleep(self, is_alert: bool) -> int | None:
        timer = self._next_timer
        sleep_s = None if timer is None else max(0.0, timer - time.monotonic())
        if is_alert:
            sleep_s = self._heartbeat_s if sleep_s is None else min(sleep_s, self._heartbeat_s)
        return None if sleep_s is None else int(sleep_s * 1000) + 1

    @property
    def _next_timer(self) -> float | None:
        """Returns when a turn is due even if no message comes, on the monotonic clock."""
        ours, of_link = self._coordinator.next_timer, self._link.due
        if ours is None or of_link is None:
            return of_link if ours is None else ours
        return min(ours, of_link)

    def _batches_are_done(self) -> None:
        if self._coordinator.has_agreed:
            self._inbox.wake.set()

    def _batch_failed(self, error: HvdError) -> None:
        is_leaving = isinstance(error, ShutDown)  # of this rank's own, which the others hear of without it
        if not (is_leaving or self._coordinator.has_ended.is_set()):
            self._post(partial(self._coordinator.batch_failed, error))

    # ---- a thread that waits

    def _drive(self, handle: Handle) -> None:
        if not self._in_flight.watch(handle, self._driver):
            return
        if not self._is_alert:
            self._is_alert = True
            self._inbox.wake.set()
        try:
            self._turn()
            while not (handle.is_done or self._is_stopping):
                if not self._executor.run_here(until=handle):
                    self._sleep_as_driver(handle)
                elif self._coordinator.has_agreed:  # there is room for the next batch now
                    self._turn()
        finally:
            self._executor.wake()
            if self._coordinator.has_agreed or self._next_timer is not None:
                self._inbox.wake.set()

    def _sleep_as_driver(self, handle: Handle) -> None:
        try:
            self._inbox.pause()
            self._driver.is_asleep = True
            if not handle.is_done:
                self._inbox.sleep_as_driver(self._milliseconds_to_sleep(True), self._driver.wake)
            self._turn()  # before the coordinator's thread sees, and wakes for, what this turn takes
        finally:
            self._driver.is_asleep = False
            self._inbox.resume()
