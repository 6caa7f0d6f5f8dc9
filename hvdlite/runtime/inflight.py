"""The tensors in flight on this rank, between the user's threads, which submit and wait, and ours, which finish them.

One lock guards the table. The first of several submits wakes the coordinator, and the next wake is due only after that
has taken what was submitted. In a `burst`, which may let the GIL go between two submits, the wake comes at the end.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from hvdlite.core.entry import Entry
from hvdlite.core.handle import Handle, Waiter
from hvdlite.core.messages import JOIN_NAME
from hvdlite.errors import DuplicateName, HorovodInternalError, HvdError


class InFlight:
    """Entries by name, the new ones in order of submission, and the error that ended the session, if one did."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._by_name: dict[str, Entry] = {}
        self._new: list[Entry] = []
        self._is_awake = False  # the coordinator was woken and has not taken the new ones yet
        self._bursts = 0
        self._error: HvdError | None = None

    def __bool__(self) -> bool:
        """Whether anything is in flight."""
        return bool(self._by_name)

    def submit(self, entry: Entry, will_wait: bool = False) -> Handle:
        """Puts ``entry`` in flight, wakes the coordinator if it is not awake yet, and returns the caller's handle.

        With ``will_wait`` the caller waits next, and nobody is woken.

        Raises DuplicateName while a tensor of this name is in flight, HorovodInternalError while this rank has joined,
        and the session's error once it has ended.
        """
        with self._lock:
            by_name, name = self._by_name, entry.name
            if self._error is not None or JOIN_NAME in by_name or name in by_name:
                raise self._refusal(name)
            by_name[name] = entry
            self._new.append(entry)
            wakes = not (self._is_awake or will_wait) and self._must_wake()
        if wakes:
            self._wake()
        return entry

    def submit_all(self, entries: Sequence[Entry], will_wait: bool = False) -> None:
        """Puts all of ``entries`` in flight or none, like `submit`."""
        with self._lock:
            by_name = self._by_name
            if self._error is not None or JOIN_NAME in by_name:
                raise self._refusal()
            for entry in entries:
                name = entry.name
                if name in by_name:
                    for earlier in entries[: entries.index(entry)]:
                        del by_name[earlier.name]
                    raise self._refusal(name)
                by_name[name] = entry
            self._new += entries
            wakes = not (self._is_awake or will_wait) and self._must_wake()
        if wakes:
            self._wake()

    def _refusal(self, name: str = "") -> HvdError | DuplicateName:
        if self._error is not None:
            return copy.copy(self._error)
        if JOIN_NAME in self._by_name:
            return HorovodInternalError(
                "this rank has joined, so it submits nothing until hvd.join() returns; "
                "join once all threads have submitted what they have"
            )
        return DuplicateName(
            f"tensor {name!r} is already in flight on this rank; synchronize it first or use another name"
        )

    @contextmanager
    def burst(self) -> Iterator[None]:
        """A context in which what is submitted, by any thread, wakes the coordinator once, at the end."""
        with self._lock:
            self._bursts += 1
        try:
            yield
        finally:
            with self._lock:
                self._bursts -= 1
                wakes = bool(self._new) and self._must_wake()
            if wakes:
                self._wake()

    def _must_wake(self) -> bool:
        if self._bursts or self._is_awake:
            return False
        self._is_awake = True
        return True

    def take_new(self) -> list[Entry]:
        """What was submitted since the last call, in order."""
        with self._lock:
            new, self._new = self._new, []
            self._is_awake = False
            return new

    def find(self, name: str) -> Entry | None:
        """The entry of this name."""
        return self._by_name.get(name)

    def finish(self, entries: Iterable[Entry], error: HvdError | None = None) -> None:
        """Makes ``entries`` done, lets go of their memory, and wakes whoever waits for them."""
        waiters = []
        with_memory = []
        with self._lock:
            by_name = self._by_name
            for entry in entries:
                name = entry.name
                if by_name.get(name) is not entry:
                    continue  # finished already, or a place that this rank filled without having submitted
                del by_name[name]
                entry.error = error
                entry.is_done = True
                if entry.owner is not None or entry.allocate is not None:
                    with_memory.append(entry)
                if entry.waiters is not None:
                    waiters += entry.waiters
        for entry in with_memory:  # without the lock: whatever is freed here may take its time, or submit
            entry.owner = entry.allocate = None
        for waiter in waiters:
            waiter.release()

    def end(self, error: HvdError) -> None:
        """Refuses new entries with ``error``. The first error stays."""
        with self._lock:
            self._error = self._error or error

    def all(self) -> list[Entry]:
        """Every entry that is not finished."""
        with self._lock:
            return list(self._by_name.values())

    def watch(self, handle: Handle, waiter: Waiter) -> bool:
        """Has ``waiter`` released when ``handle`` is done; False if it is done already."""
        with self._lock:
            if handle.is_done:
                return False
            if handle.waiters is None:
                handle.waiters = [waiter]
            else:
                handle.waiters.append(waiter)
            return True

    def wait(self, handle: Handle) -> None:
        """Sleeps until ``handle`` is done."""
        waiter = threading.Lock()
        waiter.acquire()
        if self.watch(handle, waiter):
            waiter.acquire()
