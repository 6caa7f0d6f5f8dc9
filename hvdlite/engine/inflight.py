"""The tensors in flight on this rank. The user's threads submit them and wait; hvdlite's threads finish them.

The first submit wakes the coordinator, and the next one that does is the first after the coordinator has taken what was
submitted. Other threads may run between the submits of a `burst`, so its wake comes at the end.

A signal handler may raise in the main thread between any two steps, and a lock held by the thread would then stay
locked. So submitting and waiting take no lock. Each step is one operation of a built-in container, and a submit that is
interrupted has happened completely or not at all (`InFlight._after_interrupt`). The one lock is for the threads that
finish entries, which are hvdlite's.

An interrupted call leaves its entry in flight, because the other ranks make the same call. The thread's next call of
that name does not fail with DuplicateName: it is submitted once that entry is done. So is any thread's next call if the
entry was abandoned.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from hvdlite.errors import DuplicateName, HorovodInternalError, HvdError
from hvdlite.negotiation.entry import NOBODY, Entry
from hvdlite.negotiation.handle import Handle, Waiter
from hvdlite.negotiation.messages import JOIN_NAME
from hvdlite.negotiation.unnamed import Unnamed


class InFlight:
    """Entries by name, the new ones in order of submission, and the error that ended the session, if one did.

    ``waiters`` wait for a handle. Some thread has waited without a break since ``waited_since``; an interrupted wait
    lasts until its handle is done. With ``keeps_times``, which the observer sets, entries and batches get times that
    only a timeline needs.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._by_name: dict[str, Entry] = {}
        self._new: list[Entry] = []
        self._behind: list[Sequence[Entry]] = []  # calls to submit once interrupted ones of their names are done
        self.waiters: dict[Handle, list[Waiter]] = {}
        self.waited_since = 0.0
        self.keeps_times = False
        self._is_awake = False  # the coordinator was woken and has not yet taken the new entries
        self._bursts: list[None] = []  # one item for each open burst
        self._error: HvdError | None = None
        self._lock = threading.Lock()  # for threads that finish entries

    def __bool__(self) -> bool:
        """True if anything is in flight."""
        return bool(self._by_name)

    def submit(self, entry: Entry) -> Handle:
        """Puts ``entry`` in flight, wakes the coordinator if it is not awake yet, and returns the caller's handle.

        Raises DuplicateName while a tensor of this name is in flight, HorovodInternalError while this rank has joined,
        and the session's error once it has ended.
        """
        by_name, name = self._by_name, entry.name
        try:
            ended_by = self._error
            if ended_by is not None or JOIN_NAME in by_name:
                raise self._refusal(name)
            if self.keeps_times:
                entry.submitted_at = time.monotonic()
            if by_name.setdefault(name, entry) is entry:
                self._new.append(entry)
            else:
                self._put_behind((entry,))
            if self._error is not None:  # the session ended meanwhile, perhaps without this entry
                self._withdraw((entry,))
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
        """Puts all of ``entries`` in flight or none, like `submit`.

        With ``will_wait`` the caller waits next, so no thread is woken, even if an interrupt prevents that wait.
        """
        by_name = self._by_name
        try:
            ended_by = self._error
            if ended_by is not None or JOIN_NAME in by_name:
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
                    self._put_behind(entries)
                    break
            else:
                self._new.extend(entries)
            if self._error is not None:
                self._withdraw(entries)
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

    def _put_behind(self, entries: Sequence[Entry]) -> None:
        """Lets `take_new` submit ``entries`` when interrupted or abandoned calls, which have their names, are done.

        Raises DuplicateName if other calls have a name.
        """
        self._withdraw(entries)
        caller, names = threading.get_ident(), {entry.name for entry in entries}
        waiting = [other for call in self._behind for other in call if other.name in names]
        holding = [self._by_name.get(name) for name in names]
        for other in (*holding, *waiting):
            if other is not None and other.caller not in (caller, NOBODY):
                raise self._refusal(other.name)
        if len(names) < len(entries):
            raise self._refusal(entries[0].name)
        self._behind.append(entries)

    def _withdraw(self, entries: Iterable[Entry]) -> None:
        """Withdraws entries that no turn has seen."""
        for entry in entries:
            if self._by_name.get(entry.name) is entry:
                self._by_name.pop(entry.name, None)

    def _after_interrupt(self, entries: Sequence[Entry]) -> None:
        """Leaves ``entries`` in flight as an interrupted call of this thread, or takes back what was not submitted."""
        first = next(iter(entries), None)
        if first is None:
            return
        if self._has(first):
            for entry in entries:
                entry.caller = threading.get_ident()
        else:
            self._withdraw(entries)
        self._wake()

    def _has(self, entry: Entry) -> bool:
        """True if ``entry`` was submitted. Searches in the order in which entries move, so as not to miss one."""
        return any(entry in call for call in self._behind) or entry in self._new or entry.was_taken_up

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
        """A context in which submits, of any thread, wake the coordinator once, at the end."""
        try:
            self._bursts.append(None)
            yield
        finally:
            self._bursts.pop()
            if self._new and not (self._is_awake or self._bursts):
                self._wake()

    def take_new(self) -> list[Entry]:
        """Takes the entries submitted since the last call, in order. Called in a turn."""
        self._is_awake = False
        if self._behind:
            self._submit_freed()
        new = self._new[:]
        for entry in new:
            entry.was_taken_up = True
        del self._new[: len(new)]
        if JOIN_NAME in self._by_name:
            return self._before_join(new)
        return new

    def _submit_freed(self) -> None:
        """Submits calls that waited behind interrupted ones that are done now; calls of one name in order."""
        waiting: set[str] = set()
        for call in self._behind[:]:
            names = {entry.name for entry in call}
            if waiting.isdisjoint(names) and self._by_name.keys().isdisjoint(names):
                if all(self._by_name.setdefault(entry.name, entry) is entry for entry in call):
                    self._new.extend(call)
                    self._leave_behind(call)
                else:  # another thread has just taken one of the names
                    self._withdraw(call)
            waiting |= names

    def _leave_behind(self, call: Sequence[Entry]) -> None:
        """Removes ``call``, which is new now, from those behind; if `end` has just refused it, it is not new either."""
        try:
            self._behind.remove(call)
        except ValueError:
            self._withdraw(call)
            for entry in call:
                self._new.remove(entry)

    def _before_join(self, new: list[Entry]) -> list[Entry]:
        """Returns ``new`` without entries that another thread submitted just as this one joined."""
        join = self._by_name[JOIN_NAME]
        kept = new[: new.index(join) + 1] if join in new else []
        self.finish(new[len(kept) :], _has_joined())
        return kept

    def count(self, entry: Entry) -> bool:
        """Replaces the `Unnamed` of ``entry``, which this turn has taken, by its name.

        False if the user has the same name in flight: then the entry fails with DuplicateName.
        """
        unnamed = entry.name
        assert isinstance(unnamed, Unnamed)
        name = unnamed.counted()
        if self._by_name.setdefault(name, entry) is not entry:
            self.finish((entry,), self._refusal(name))
            return False
        entry.rename(name)
        self._by_name.pop(unnamed, None)
        return True

    def finish(self, entries: Sequence[Entry], error: HvdError | DuplicateName | None = None) -> None:
        """Marks ``entries`` done, releases their memory, and wakes their waiters. For hvdlite's threads only."""
        freed = []  # without the lock: freeing may take long, or run code that submits
        with self._lock:
            by_name = self._by_name
            for entry in entries:
                name = entry.name
                if by_name.get(name) is not entry:
                    continue  # finished already, or a place that this rank filled without having submitted
                del by_name[name]
                entry.error = error
                entry.is_done = True
                freed.append(entry.owner)
                entry.owner = None
                if entry.allocate is not None:
                    freed.append(entry.allocate)
                    entry.allocate = None
        freed.clear()
        if self.waiters:  # read after `is_done` was set; waiters do it the other way round
            for handle in list(self.waiters):  # few: one for each thread
                if handle.is_done:
                    self._release(handle)
        if self._behind:
            self._wake()

    def _release(self, handle: Handle) -> None:
        if (waiters := self.waiters.pop(handle, None)) is not None:
            _release_all(waiters)

    def end(self, error: HvdError) -> None:
        """Refuses new entries with ``error``. The first error stays."""
        self._error = self._error or error
        with suppress(IndexError):  # another thread may take the last one
            while True:
                call = self._behind.pop()
                for entry in call:
                    entry.error = error
                    entry.is_done = True
                    self._release(entry)

    def forget(self, error: HvdError) -> None:
        """Fails every entry with ``error`` where no thread will finish it. Takes no lock: a fork may copy it locked."""
        self.end(error)
        for entry in self.all():
            entry.error = error
            entry.is_done = True
        self._by_name.clear()

    @property
    def has_ended(self) -> bool:
        """True if new entries are refused. Then those that were in flight may be no more."""
        return self._error is not None

    def all(self) -> list[Entry]:
        """Returns every unfinished entry."""
        return list(self._by_name.values())

    def watch(self, handle: Handle, waiter: Waiter) -> bool:
        """Releases ``waiter`` once, in any thread: now if ``handle`` is done, else when it is. False if it was done."""
        if not self.waiters:
            self.waited_since = time.monotonic()
        waiters = self.waiters.setdefault(handle, [])
        waiters.append(waiter)
        if handle.is_done:  # the finishing thread may have looked before, or between the two steps
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
    """Takes each of ``waiters`` off the list and releases it. Other threads may do so, and append, at the same time."""
    try:
        while waiters:
            waiter = waiters.pop()  # lives while it rings: a wait that was interrupted may have left it here alone
            waiter.release()
    except IndexError:  # another thread has taken the last one
        return
