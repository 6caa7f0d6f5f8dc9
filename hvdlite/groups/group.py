"""A group of ranks that run collectives among themselves: all ranks of the job, or the ranks of a process set.

Every group has its own links, data planes and threads, so one group never delays another: their tensors are not
negotiated together, and do not share a queue. A group needs no session.

While the program computes, the threads of the group work. The coordinator's thread sleeps until a message arrives or a
tensor is submitted, and takes a turn; the executor's thread runs the batches.

A thread that waits for a result *drives*: it takes the turns and runs the batches itself, and sleeps on the control
link, which the coordinator's thread leaves to it. So a blocking collective needs no switch between threads, which would
be most of its time. While the driver is inside a native call, the coordinator's thread watches the peers again. One
thread drives at a time; other waiting threads sleep until their handles are done.

Signal handlers interrupt the main thread, so it never drives itself: the thread of a `MainThreadDriver` drives for it.
"""

from __future__ import annotations

import copy
import json
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from hvdlite.engine.apart import do_apart
from hvdlite.engine.callers import HERE, Callers
from hvdlite.engine.coordinator import Coordinator
from hvdlite.engine.executor import Executor
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.main_thread import Drive, MainThreadDriver
from hvdlite.engine.observer import Observer, Statistics
from hvdlite.errors import HvdError, ShutDown
from hvdlite.groups.connecting import Connecting, Connections, Exchange, Memory, connect
from hvdlite.log import logger
from hvdlite.members.membership import Membership
from hvdlite.negotiation.end_messages import error_of
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.handle import Handle, Waiter
from hvdlite.negotiation.messages import STILL_RUN, End, EndKind, Kind, Request, Tuning
from hvdlite.negotiation.unnamed import Counter, Counters, Unnamed
from hvdlite.negotiation.wire import ProtocolError
from hvdlite.net.wake import Wake
from hvdlite.planes.shm.part import ArenaPart
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.tensors.buffer import address_of
from hvdlite.tensors.dtypes import DType, Sum

T = TypeVar("T")

_STOP_S: Final = 5.0  # for a stopped thread to end
_ABORTED_S: Final = 1.0  # for an aborted batch to fail


class _Driver:
    """The waiter of the thread that drives: `release` wakes the thread if it may be asleep on the link."""

    def __init__(self) -> None:
        self.wake = Wake()
        self.is_asleep = False

    def release(self) -> None:
        if self.is_asleep:
            self.wake.set()


class Group:
    """This rank's part in a group, from `open` to `end`, and the threads that serve it.

    - ``ranks``: the members' numbers in the job, ascending; ``rank``: the index of this rank in ``ranks``.
    - ``known``: what the response cache remembers for each name; ``known_unnamed``: for each description of a tensor
      without a name, see `Cache`.
    - ``planes``: the data planes, by kind of device.
    - ``memory``: the members' regions in the memory that the ranks of a host share, or None.
    - ``interrupted_join``: the entry of a `join` that a signal handler interrupted on this rank, or None.
    """

    @classmethod
    def open(
        cls,
        membership: Membership,
        options: Settings,
        exchange: Exchange,
        scope: Scope,
        memory: Memory = None,
    ) -> Group:
        """Connects this rank with the other members, which call it too, and starts the threads.

        ``exchange`` is called twice. ``memory`` is the memory that the ranks of a host share: an `ArenaPart` to make
        it, or the members' `Regions` in the memory of a larger group.

        Raises NotConnected on all members if one member cannot connect, or if its ``scope`` is over or cancelled, and
        ValueError for options that the members cannot use. In the main thread, another thread does the work, and also
        calls ``exchange``. If a signal handler raises meanwhile, the group is not opened, or left again.
        """
        opened: list[Group] = []
        is_wanted = True

        def start(scope: Scope) -> Group:
            connections = connect(Connecting(membership, options, memory), exchange, scope)
            opened.append(cls(membership, options, connections, makes_memory=isinstance(memory, ArenaPart)))
            if not is_wanted:  # read after `opened` has the group: an interrupted caller looks in it afterwards
                opened[0].end(EndKind.LEFT)
            return opened[0]

        try:
            return do_apart(start, "opening a group", within=scope)
        except BaseException:
            is_wanted = False
            for group in opened:
                group.end(EndKind.LEFT)
            raise

    def __init__(
        self, membership: Membership, options: Settings, connections: Connections, *, makes_memory: bool
    ) -> None:
        """Takes over ``connections``. Only `open` calls it."""
        self.membership = membership
        self.ranks = membership.ranks
        self.rank = membership.rank
        self.size = membership.size
        self._index_of = {member: index for index, member in enumerate(self.ranks)}
        self.interrupted_join: Entry[int] | None = None
        self._counters = Counters()
        self._callers = Callers(membership.number)

        self._link = connections.link
        self._inbox = self._link.inbox
        self.planes = connections.planes
        self.memory = connections.regions
        self._made_memory = makes_memory

        self._heartbeat_s = options.heartbeat_interval
        self._in_flight = InFlight(self._inbox.wake.set)
        self.observer = Observer(self._in_flight, membership.leader_of)
        self._executor = Executor(
            self.planes,
            self._in_flight,
            self.observer,
            self._on_batches_done,
            self._on_batch_failed,
            self._link.page,
            options.progress_timeout,
        )
        self._coordinator = Coordinator(
            membership,
            options,
            self._link,
            self.planes,
            self._in_flight,
            self._executor,
            self.observer,
            self._on_end,
            self._link.page,
        )
        self._decider = self._coordinator.decider
        self._calls = self._coordinator.calls
        self.known = self._coordinator.known
        self.known_unnamed = self._coordinator.unnamed
        self._when_ended: deque[Callable[[End], None]] = deque()
        self._fork: End | None = None
        self._turns = 0
        self._ended_in_turn = math.inf
        self._turn_lock = threading.Lock()  # the driver and the coordinator's thread both take turns
        self._driving = threading.Lock()  # held by the thread that drives
        self._driver = _Driver()
        self._main_driver = MainThreadDriver(self._in_flight, self._drive, self._driver, self._inbox.wake.set, self.run)
        self._main_thread = threading.main_thread().ident
        self._leaving = threading.Lock()  # held by the thread that leaves
        self._has_left = False
        self._watches: list[None] = []  # one for each open `watching_peers`
        self._is_alert = False  # the coordinator's thread checks the peers every heartbeat
        self._mail: deque[Callable[[], None]] = deque()  # actions of other threads, done in a turn
        self._is_stopping = False
        self._thread = threading.Thread(target=self._serve, name="hvdlite-coordinator", daemon=True)
        self._thread.start()
        _groups.add(self)

    # ---- members and names

    def index_of(self, rank: int) -> int | None:
        """Converts a rank's number in the job to its index in the group; None if the rank is no member."""
        return self._index_of.get(rank)

    def unnamed(self, kind: Kind, *between: Any) -> Unnamed:
        """Returns a placeholder for the next automatic name of a ``kind`` of collective.

        Each kind has a counter, and so has each value of ``between``, such as the two ranks of a message. Raises
        ValueError if another live thread owns the counter; see `Callers`.
        """
        if self._calls is not None:
            self._calls.number()
        return Unnamed(self.admit(kind, *between), self._counters)

    def next_call(self, purpose: str = "") -> Unnamed:
        """Returns a placeholder for the number of the next call of any kind, and of any thread.

        For programs that make all calls in the same order on all ranks. If they do not, calls of two kinds meet under
        one number, which is a Mismatch. Each ``purpose``, with which the names begin, has a counter of its own.
        """
        if self._calls is not None:
            self._calls.number()
        return Unnamed(("call", purpose), self._counters, purpose)

    def admit(self, kind: Kind, *between: Any) -> Counter:
        """Makes this thread the owner of a counter, and returns it. Raises ValueError if another thread owns it."""
        counter = (kind, *between)
        if self._callers.get(counter) is not HERE.thread:
            self._callers.admit(counter)
        return counter

    @property
    def joins(self) -> int:
        """How often all ranks have joined. It is the same on every rank that is in no join."""
        return self._counters.epoch.joins

    def restart_counters(self) -> None:
        """Restarts all counters of automatic names, because ranks made different numbers of calls before a join.

        Every rank calls it in the same batch. Names contain ``joins``, so no name that is still in flight recurs.
        """
        self._counters.restart()

    # ---- collectives

    def submit(self, entry: Entry) -> Handle:
        """Puts ``entry`` in flight and returns the caller's handle; see `InFlight.submit`."""
        return self._in_flight.submit(entry)

    def submit_all(self, entries: Sequence[Entry]) -> None:
        """Puts all of ``entries`` in flight or none; see `InFlight.submit`."""
        self._in_flight.submit_all(entries)

    def burst(self) -> AbstractContextManager[None]:
        """A context in which submits of any thread wake the coordinator only once, at the end."""
        return self._in_flight.burst()

    def run(self, entry: Entry) -> Handle:
        """Submits ``entry`` and returns the caller's handle when it is done."""
        self.run_all((entry,))
        return entry

    def run_all(self, entries: Sequence[Entry]) -> None:
        """Submits ``entries``, all or none, and returns when they are done.

        If a signal handler raises meanwhile, all entries stay in flight, or none was submitted.
        """
        calls = self._calls
        try:
            if calls is None or not calls.run(entries):
                self._in_flight.submit_all(entries, will_wait=True)
            for entry in entries:
                if not entry.is_done:
                    self.wait(entry)
        except BaseException:  # perhaps no thread has seen the entries yet
            self._inbox.wake.set()
            raise

    def run_chained(self, first: Entry, rest: Callable[[], T]) -> T:
        """Submits ``first``, waits for it, calls ``rest``, and returns its result or raises its error.

        If a signal handler raises in the main thread meanwhile, either nothing was submitted, or ``rest`` still runs.
        """
        return self._main_driver.run_chained(first, rest)

    def wait(self, handle: Handle) -> None:
        """Waits until ``handle`` is done. A peer that dies ends the group, and so the wait.

        If a signal handler raises in the main thread, that ends the wait and changes nothing else.
        """
        if threading.get_ident() == self._main_thread:
            self._main_driver.wait(handle)
            return
        drive = Drive(handle, self._driver)
        if self._in_flight.watch(handle, drive):
            self._drive(drive)
            if not handle.is_done:  # the process is about to end
                drive.sleep()

    def watch(self, handle: Handle, waiter: Waiter) -> bool:
        """Releases ``waiter`` once, in any thread, when ``handle`` is done. False if it was done already."""
        return self._in_flight.watch(handle, waiter)

    def exchange(self, purpose: str, offer: Any) -> list[Any]:
        """Publishes ``offer`` (JSON) and returns the offers of all ranks for the same ``purpose``, in rank order.

        Raises the error of its all-gather if that fails.
        """
        name = Unnamed((Kind.ALLGATHER, purpose), self._counters, f"{purpose}.")
        line = np.frombuffer(json.dumps(offer).encode() + b"\n", np.uint8)

        def allocate(shape: tuple[int, ...], rows: tuple[int, ...]) -> tuple[Any, int]:
            output = np.empty(shape, np.uint8)
            return output, address_of(output)

        request = Request(name, Kind.ALLGATHER, DType.UINT8, line.shape, Sum, 1.0, 1.0, 0, cacheable=False)
        entry = Entry(request, self, address_of(line), owner=line, allocate=allocate)
        self.run(entry)
        if entry.error is not None:
            raise copy.copy(entry.error) from entry.error.__cause__
        return [json.loads(each) for each in entry.output.tobytes().splitlines()]

    @contextmanager
    def watching_peers(self) -> Iterator[None]:
        """A context in which this rank watches its peers even while it has nothing in flight."""
        self._watches.append(None)
        self._inbox.wake.set()
        try:
            yield
        finally:
            self._watches.pop()

    def tune(self, tuning: Tuning) -> None:
        """Applies ``tuning`` on all ranks from the next run on. Raises ValueError on any rank but the root."""
        self._decider.tune(tuning)
        self._inbox.wake.set()

    @property
    def tuning(self) -> Tuning | None:
        """The tuning that the root has chosen; None before the first run. Any thread may read it."""
        return self._coordinator.tuning

    def statistics(self) -> Statistics:
        """Returns this rank's statistics of the group. Any thread may call it, at any time."""
        return self.observer.statistics(self.planes)

    # ---- the end

    @property
    def ended(self) -> End | None:
        """The end that ended the group, or None."""
        return self._fork or self._coordinator.ended_by

    def when_ended(self, call: Callable[[End], None]) -> None:
        """Calls ``call`` once with what ended the group: now if it has ended, else in a turn.

        ``call`` must not block.
        """
        self._when_ended.append(call)
        if (end := self._coordinator.ended_by) is not None:
            self._call_when_ended(end)

    def end(self, kind: EndKind | End, scope: Scope | None = None) -> None:
        """Ends the group on this rank, in the way of ``kind``. Any thread may call it.

        LEFT and REMOVED: this rank leaves, and reports it to the other ranks. Tensors that are not agreed yet fail on
        all ranks; agreed ones still run until ``scope`` is over. Then all threads end, and everything is closed.

        EXITED: the process is about to exit. Agreed batches may finish until ``scope`` is over, and the threads end.
        Peers notice the exit by themselves, and are informed now if this rank owes them nothing. If the group has ended
        already, its end is still delivered: otherwise peers would take this exit for the cause. LEFT may follow.

        FORKED: this process is a fork, which has none of the threads. Everything in flight fails.

        An `End`, of another group or because of a failure on this rank: the next turn ends the group on all ranks.
        Returns at once. The caller must still leave the group.

        In the main thread, another thread leaves the group, and goes on if a signal handler raises meanwhile. To leave
        again has no effect.
        """
        scope = scope or Scope.of(_STOP_S)
        if isinstance(kind, End):
            self._post(partial(self._coordinator.end, kind))
        elif kind is EndKind.FORKED:
            self._fork = self._own_end(kind, f"process {os.getpid()}")
            self._in_flight.forget(error_of(self._fork))
        elif kind is EndKind.EXITED:
            self._exit(scope)
        else:
            do_apart(lambda scope: self._leave(kind, scope), "leaving a group", within=scope)

    def _leave(self, kind: EndKind, scope: Scope) -> None:
        with self._leaving:
            if not self._has_left:
                self._close(kind, scope)
                self._has_left = True

    def _close(self, kind: EndKind, scope: Scope) -> None:
        if not self._is_stopping:  # else the process is about to exit, and has no thread that takes a turn
            self._post(partial(self._coordinator.leave, kind))
            self._coordinator.has_ended.wait(scope.timeout_s)
        self._finish_batches(scope, f"rank {self.membership.number} shut down while a batch was running")
        self._stop(Scope.of(_STOP_S))
        with self._driving:  # waits for the driver, whose handle has ended
            self._link.close()
            self.planes.close()
            self._driver.wake.close()
            self._main_driver.close()
        memory, self.memory = self.memory, None
        if memory is not None and self._made_memory:
            memory.arena.leave()

    def _exit(self, scope: Scope) -> None:
        if self._has_left:
            return
        is_idle = self._finish_batches(scope, f"rank {self.membership.number} is exiting")
        has_run_all = is_idle and not scope.is_over  # else some batch may have been aborted
        self._stop(Scope.of(_ABORTED_S))
        if is_idle:
            with self._driving:
                ended = self.ended
                has_run_all = has_run_all and (ended is None or ended.kind in STILL_RUN)
                if has_run_all and not (self._in_flight or self._thread.is_alive()):
                    self._coordinator.exit()
                    self._link.flush(scope)
                if ended is not None:
                    self._link.close()
            self.planes.close()

    def _finish_batches(self, scope: Scope, cause: str) -> bool:
        """Closes the executor after its batches, which are aborted if ``scope`` is over. False if one still runs."""
        if self._executor.close(scope):
            return True
        self._executor.abort(ShutDown(self.membership.number, cause))
        return self._executor.close(Scope.of(_ABORTED_S))

    def _stop(self, scope: Scope) -> None:
        self._is_stopping = True
        self._inbox.wake.set()
        self._driver.wake.set()
        self._thread.join(scope.timeout_s)
        self._main_driver.stop(scope)

    # ---- the coordinator's thread

    def _serve(self) -> None:
        while not self._is_stopping:
            turns = self._turns
            if not self._decider.arm():  # also for a driver that sleeps: the turn before may have been this thread's
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
            except Exception as error:  # of any type: the waiting handles must fail with it
                cause = str(error)
                if not isinstance(error, ProtocolError):
                    logger.exception("the coordinator failed")
                    cause = f"its coordinator failed: {type(error).__name__}: {error}"
                if self._ended_in_turn < self._turns:
                    self._is_stopping = True  # the group has ended already, so there is nothing left to fail
                else:
                    self._coordinator.fail(cause)

    def _on_end(self, end: End) -> None:
        self._ended_in_turn = self._turns
        self._call_when_ended(end)

    def _call_when_ended(self, end: End) -> None:
        with suppress(IndexError):  # nothing is left; several threads may get here
            while True:
                self._when_ended.pop()(end)

    def _own_end(self, kind: EndKind, cause: str) -> End:
        return End(kind, self.membership.number, self.membership.hosts[self.rank].name, cause)

    def _post(self, act: Callable[[], None]) -> None:
        """Calls ``act`` in the next turn, after the turn has received the messages of other ranks."""
        self._mail.append(act)
        self._inbox.wake.set()

    def _milliseconds_to_sleep(self, is_alert: bool) -> int | None:
        if self._in_flight.is_stream:
            return 1
        timer = self._next_timer
        sleep_s = None if timer is None else max(0.0, timer - time.monotonic())
        if is_alert:
            sleep_s = self._heartbeat_s if sleep_s is None else min(sleep_s, self._heartbeat_s)
        return None if sleep_s is None else int(sleep_s * 1000) + 1

    @property
    def _next_timer(self) -> float | None:
        """When a turn is due even if no message arrives, on the monotonic clock; None: never."""
        ours, of_link = self._decider.due, self._link.due
        if ours is None:  # there are no decisions to make after the end
            ours = self._coordinator.due
        if ours is None or of_link is None:
            return of_link if ours is None else ours
        return min(ours, of_link)

    def _on_batches_done(self) -> None:
        if self._decider.has_agreed:
            self._inbox.wake.set()

    def _on_batch_failed(self, error: HvdError) -> None:
        is_leaving = isinstance(error, ShutDown)  # this rank aborted the batch, and reports its end in another way
        if not (is_leaving or self._coordinator.has_ended.is_set()):
            self._post(partial(self._coordinator.batch_failed, error))

    # ---- a thread that waits

    def _drive(self, drive: Drive) -> None:
        """Drives until ``drive`` is done. If another thread drives, sleeps until then."""
        if not self._driving.acquire(blocking=False):
            self._inbox.wake.set()
            drive.sleep()
            return
        try:
            if not self._is_alert:
                self._is_alert = True
                self._inbox.wake.set()
            self._turn_as_driver()
            while not (drive.is_done or self._is_stopping):
                if not self._executor.run_here(until=drive):
                    self._sleep_as_driver(drive)
                elif self._decider.has_agreed:  # there is room for the next batch now
                    self._turn_as_driver()
        finally:
            self._executor.wake()
            if self._decider.arm() or self._decider.has_agreed or self._next_timer is not None:
                self._inbox.wake.set()
            self._driving.release()

    def _turn_as_driver(self) -> None:
        self._turn()
        if self._in_flight.is_stream:  # which the coordinator's thread must look after, since batches may take long
            self._inbox.wake.set()

    def _sleep_as_driver(self, drive: Drive) -> None:
        try:
            self._inbox.pause()
            self._driver.is_asleep = True
            if not drive.is_done:
                self._inbox.sleep_as_driver(self._milliseconds_to_sleep(True), self._driver.wake)
            self._turn_as_driver()  # first, or the coordinator's thread would wake for what this turn takes
        finally:
            self._driver.is_asleep = False
            self._inbox.resume()


_groups: weakref.WeakSet[Group] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for group in _groups:
        group.end(EndKind.FORKED)


os.register_at_fork(after_in_child=_after_fork_in_child)
