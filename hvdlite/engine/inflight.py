"""The tensors in flight on this rank. The user's threads submit tensors and wait; hvdlite's threads finish them.

A submit wakes the coordinator unless an earlier one has woken it and it has not taken the new entries yet. The submits
of a `burst` wake it once, at the end, because otherwise other threads would run between them. And while entries come in
a *stream*, one turn after the other, the coordinator looks for them every millisecond, and nobody wakes it.

A signal handler may raise in the main thread between any two steps, and a lock that the main thread holds would then
stay locked. So submitting and waiting take no lock. Each step is one atomic operation of a built-in container, and an
interrupted submit has happened completely or not at all (`InFlight._after_interrupt`). The one lock serializes the
threads that finish entries, which are hvdlite's own.

An interrupted call leaves its entry in flight, because the other ranks make the same call. When the same thread calls
again with that name, the new call does not fail with DuplicateName: it is *deferred*, and submitted once the old entry
is done. After an abandoned entry, a call of any thread is deferred, and so is a barrier after another one.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from hvdlite.errors import DuplicateName, HorovodInternalError, HvdError
from hvdlite.negotiation.entry import NOBODY, Entry
from hvdlite.negotiation.handle import Handle, Waiter
from hvdlite.negotiation.messages import BARRIER_NAME, JOIN_NAME
from hvdlite.negotiation.unnamed import Unnamed

_STREAM_S: Final = 0.002  # so long after the last turn that took entries the next one belongs to the same stream
_TURNS: Final = 3  # of a stream, before it is one


class InFlight:
    """The entries in flight of one group on this rank. ``wake`` wakes the coordinator.

    While ``is_stream``, a turn must follow within a millisecond. ``waiters`` has the waiters of each handle. While it
    is not empty, at least one thread has waited at any time since ``waited_since``, on the monotonic clock; an
    interrupted wait counts until its handle is done. With ``keeps_times``, which the observer sets, entries and batches
    get the times that only a timeline needs.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._by_name: dict[str, Entry] = {}
        self._new: list[Entry] = []
        self._deferred: list[Sequence[Entry]] = []  # one item for each call; see the top of this file
        self.waiters: dict[Handle, list[Waiter]] = {}
        self.waited_since = 0.0
        self.keeps_times = False
        self._is_awake = False  # the coordinator was woken, and has not taken the new entries yet
        self.is_stream = False
        self._turns = 0  # of a stream
        self._taken_at = 0.0
        self._bursts: list[None] = []  # one item for each open burst
        self._error: HvdError | None = None
        self._lock = threading.Lock()  # for threads that finish entries

    def __bool__(self) -> bool:
        """True if anything is in flight."""
        return bool(self._by_name)

    def enter_alone(self, entries: Sequence[Entry]) -> bool:
        """Puts all of ``entries`` in flight without submitting them.

        False if anything is in flight, new entries are refused, or somebody keeps their times or watches
        an entry.
        """
        by_name = self._by_name
        if by_name or self._new or self._deferred or self._error or self.keeps_times or self.waiters:
            return False
        caller = threading.get_ident()
        for entry in entries:
            entry.caller = caller
            if by_name.setdefault(entry.name, entry) is not entry:
                break
        else:
            if self._error is None:
                return True
        self.withdraw(entries)
        return False

    def withdraw(self, entries: Sequence[Entry]) -> None:
        """Takes entries that no turn has seen out of flight."""
        by_name = self._by_name
        for entry in entries:
            if by_name.get(entry.name) is entry:
                by_name.pop(entry.name, None)
        if self._deferred:
            self._wake()

    def submit(self, entry: Entry) -> Handle:
        """Puts ``entry`` in flight, wakes the coordinator if needed, and returns the caller's handle.

        Raises DuplicateName while a tensor of this name is in flight, HorovodInternalError while this rank has joined
        and `join` has not returned, and after the end of the group the error that ended it.
        """
        by_name = self._by_name
        try:
            if self._error or JOIN_NAME in by_name:
                raise self._refusal(entry.name)
            if self.keeps_times:
                entry.submitted_at = time.monotonic()
            if by_name.setdefault(entry.name, entry) is entry:
                self._new.append(entry)
            else:
                self._defer((entry,))
            if self._error is not None:  # the group ended meanwhile, perhaps before it had this entry
                self.withdraw((entry,))
                self.end(self._error)
                raise self._refusal()
            if not (self._is_awake or self._bursts):
                self._is_awake = True
                self._wake()
            return entry
        except (HvdError, DuplicateName):
            raise
        except BaseException:
            self._after_interrupt((entry,))
            raise

    def submit_all(self, entries: Sequence[Entry], will_wait: bool = False) -> None:
        """Puts all of ``entries`` in flight or none. Raises as `submit` does.

        With ``will_wait`` the caller waits next and drives, so the coordinator is not woken.
        """
        by_name = self._by_name
        try:
            if self._error or JOIN_NAME in by_name:
                raise self._refusal()
            if will_wait:
                caller = threading.get_ident()
                for entry in entries:
                    entry.caller = caller
            if self.keeps_times:
                now = time.monotonic()
                for entry in entries:
                    entry.submitted_at = now
            for entry in entries:
                if by_name.setdefault(entry.name, entry) is not entry:
                    self._defer(entries)
                    break
            else:
                self._new.extend(entries)
            if self._error is not None:
                self.withdraw(entries)
                self.end(self._error)
                raise self._refusal()
            if not (self._is_awake or will_wait or self._bursts):
                self._is_awake = True
                self._wake()
        except (HvdError, DuplicateName):
            raise
        except BaseException:
            self._after_interrupt(entries)
            raise

    def _defer(self, entries: Sequence[Entry]) -> None:
        """Lets `take_new` submit ``entries`` once the interrupted or abandoned calls of their names are done.

        Raises DuplicateName if any other call has one of the names.
        """
        self.withdraw(entries)
        caller, names = threading.get_ident(), {entry.name for entry in entries}
        waiting = [other for call in self._deferred for other in call if other.name in names]
        holding = [self._by_name.get(name) for name in names]
        for other in (*holding, *waiting):
            if other is not None and other.caller not in (caller, NOBODY) and other.name != BARRIER_NAME:
                raise self._refusal(other.name)
        if len(names) < len(entries):
            raise self._refusal(entries[0].name)
        self._deferred.append(entries)

    def _after_interrupt(self, entries: Sequence[Entry]) -> None:
        """Leaves ``entries`` in flight as an interrupted call of this thread; withdraws them if not yet submitted."""
        first = next(iter(entries), None)
        if first is None:
            return
        if self._has(first):
            for entry in entries:
                entry.caller = threading.get_ident()
        else:
            self.withdraw(entries)
        self._wake()

    def _has(self, entry: Entry) -> bool:
        """True if ``entry`` was submitted. Looks in the order in which entries move, so that it misses none."""
        return any(entry in call for call in self._deferred) or entry in self._new or entry.was_taken_up

    def _refusal(self, name: str = "") -> HvdError | DuplicateName:
        if self._error is not None:
            return copy.copy(self._error)
        if JOIN_NAME in self._by_name:
            return _has_joined()
        return DuplicateName(
            f"tensor {name!r} is already in flight on this rank; synchronize it first or use another name"
        )

    @contextmanager
    def burst(self) -> Iterator[None]:
        """A context in which submits of any thread wake the coordinator only once, at the end."""
        try:
            self._bursts.append(None)
            yield
        finally:
            self._bursts.pop()
            if self._new and not self._bursts and (self.is_stream or not self._is_awake):
                self._wake()

    def take_new(self) -> list[Entry]:
        """Takes the entries submitted since the last call, in order. Only turns call it."""
        self._is_awake = self.is_stream
        if self._deferred:
            self._submit_deferred()
        new = self._new[:]
        is_stream = False
        if new and not new[-1].caller:  # whose thread does not wait
            now = time.monotonic()
            self._turns = self._turns + 1 if now - self._taken_at < _STREAM_S else 1
            self._taken_at = now
            is_stream = self._turns >= _TURNS and not self._bursts  # whose end wakes the coordinator
        if is_stream:
            self._is_awake = self.is_stream = True
        elif self.is_stream:
            self._is_awake = self.is_stream = False
            new = self._new[:]  # with what came just before
            if self._deferred:
                self._wake()
        for entry in new:
            entry.was_taken_up = True
        del self._new[: len(new)]
        if JOIN_NAME in self._by_name:
            return self._before_join(new)
        return new

    def _submit_deferred(self) -> None:
        """Submits the deferred calls whose names are free now; calls with a common name in order."""
        waiting: set[str] = set()
        for call in self._deferred[:]:
            names = {entry.name for entry in call}
            if waiting.isdisjoint(names) and self._by_name.keys().isdisjoint(names):
                if all(self._by_name.setdefault(entry.name, entry) is entry for entry in call):
                    self._new.extend(call)
                    self._remove_deferred(call)
                else:  # another thread has just taken one of the names
                    self.withdraw(call)
            waiting |= names

    def _remove_deferred(self, call: Sequence[Entry]) -> None:
        """Removes ``call``, which is new now, from the deferred calls. If `end` has just failed it, withdraws it."""
        try:
            self._deferred.remove(call)
        except ValueError:
            self.withdraw(call)
            for entry in call:
                self._new.remove(entry)

    def _before_join(self, new: list[Entry]) -> list[Entry]:
        """Returns ``new`` without the entries that other threads submitted after the join, which fail."""
        join = self._by_name[JOIN_NAME]
        kept = new[: new.index(join) + 1] if join in new else []
        self.finish(new[len(kept) :], _has_joined())
        return kept

    def number(self, entry: Entry) -> bool:
        """Gives ``entry``, which a turn has taken, an automatic name in place of its `Unnamed`.

        False if a tensor that the user gave the same name is in flight.
        """
        unnamed = entry.name
        assert isinstance(unnamed, Unnamed)
        name = unnamed.counted()
        if self._by_name.setdefault(name, entry) is not entry:
            return False
        entry.rename(name)
        self._by_name.pop(unnamed, None)
        return True

    def count(self, entry: Entry) -> bool:
        """The same, but if the name is in use, ``entry`` fails with DuplicateName."""
        if self.number(entry):
            return True
        assert isinstance(entry.name, Unnamed)
        self.finish((entry,), self._refusal(entry.name.counted()))
        return False

    def finish(self, entries: Sequence[Entry], error: HvdError | DuplicateName | None = None) -> None:
        """Marks ``entries`` done, frees their memory, and wakes their waiters. For hvdlite's threads only."""
        freed = []  # freed without the lock: that may take long, or run code that submits
        with self._lock:
            by_name = self._by_name
            for entry in entries:
                name = entry.name
                if by_name.get(name) is not entry:
                    continue  # finished already, or made by `of_joined` on a rank that has joined
                by_name.pop(name, None)  # the thread of a call that is done may do so, too
                entry.error = error
                entry.is_done = True
                freed.append(entry.owner)
                entry.owner = None
                if entry.allocate is not None:
                    freed.append(entry.allocate)
                    entry.allocate = None
        freed.clear()
        if self.waiters:  # read after `is_done` is set: `watch` adds a waiter before it reads `is_done`
            for handle in list(self.waiters):  # few: one for each thread
                if handle.is_done:
                    self._release(handle)
        if self._deferred:
            self._wake()

    def _release(self, handle: Handle) -> None:
        if (waiters := self.waiters.pop(handle, None)) is not None:
            _release_all(waiters)

    def end(self, error: HvdError) -> None:
        """Refuses new entries and fails deferred ones with ``error``. Of several calls the first error stays."""
        self._error = self._error or error
        with suppress(IndexError):  # the list is empty; several threads may get here
            while True:
                call = self._deferred.pop()
                for entry in call:
                    entry.error = error
                    entry.is_done = True
                    self._release(entry)

    def forget(self, error: HvdError) -> None:
        """Fails every entry with ``error`` in a forked child. Takes no lock: the fork may have copied it locked."""
        self.end(error)
        for entry in self.all():
            entry.error = error
            entry.is_done = True
        self._by_name.clear()

    @property
    def has_ended(self) -> bool:
        """True if new entries are refused. Entries that were in flight may have failed by then."""
        return self._error is not None

    def all(self) -> list[Entry]:
        """Returns every unfinished entry."""
        return list(self._by_name.values())

    def watch(self, handle: Handle, waiter: Waiter) -> bool:
        """Releases ``waiter`` once, in any thread, when ``handle`` is done. False if it was done already."""
        if not self.waiters:
            self.waited_since = time.monotonic()
        waiters = self.waiters.setdefault(handle, [])
        waiters.append(waiter)
        if handle.is_done:  # the finishing thread may have read `waiters` before the waiter was in it
            self._release(handle)
            _release_all(waiters)
            return False
        return True

    def unwatch(self, entry: Entry) -> None:
        """Undoes each `watch` of ``entry``, if it was not submitted."""
        if not self._has(entry):
            self.waiters.pop(entry, None)


def _has_joined() -> HorovodInternalError:
    return HorovodInternalError(
        "this rank has joined, so it cannot submit until hvd.join() returns; "
        "join once all threads have submitted what they have"
    )


def _release_all(waiters: list[Waiter]) -> None:
    """Removes each waiter from ``waiters`` and releases it. Other threads may do so, and append, at the same time."""
    try:
        while waiters:
            waiter = waiters.pop()  # keeps a `Bell` alive during `release`: an interrupted wait has no reference to it
            waiter.release()
    except IndexError:  # another thread has taken the last one
        return
