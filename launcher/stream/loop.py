"""An event loop: each descriptor has a function that is called when it is ready, and each timer one for its time.

It asks epoll, not poll as `hvdlite.net.poll` does in ranks: epoll reports descriptors in the order in which they became
ready, which is the order in which ranks died. A forked child would share it; neither hvdrun nor an agent forks itself.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from math import inf
from typing import Final

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE


class Timer:
    """Calls a function once, in the first turn of a loop that lasts until its time, which may be moved."""

    __slots__ = ("_call", "_timers", "when")

    def __init__(self, timers: set[Timer], call: Callable[[], None]) -> None:
        self._timers, self._call = timers, call
        self.when = inf

    @property
    def is_set(self) -> bool:
        """True if it has a time."""
        return self in self._timers

    def move(self, when: float | None) -> None:
        """Moves the time to ``when``, on the monotonic clock; None: there is none for now."""
        self.when = inf if when is None else when
        if when is None:
            self._timers.discard(self)
        else:
            self._timers.add(self)

    def fire(self) -> None:
        """Its time has come."""
        self.move(None)
        self._call()


class Loop:
    """Calls functions of descriptors and timers. A descriptor has a function for each of `READ` and `WRITE`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: set[Timer] = set()  # those that have a time, a dozen at most

    def watch(self, descriptor: int, react: Callable[[], None], event: int = READ) -> None:
        """Has ``react`` called when ``descriptor`` is ready; does nothing if it is watched for that already."""
        key = self._selector.get_map().get(descriptor)
        if key is None:
            self._selector.register(descriptor, event, {event: react})
        elif event not in key.data:
            self._selector.modify(descriptor, key.events | event, {**key.data, event: react})

    def unwatch(self, descriptor: int, event: int = READ) -> None:
        """Forgets ``descriptor``, if it is watched. Call it before the descriptor is closed."""
        key = self._selector.get_map().get(descriptor)
        if key is None or event not in key.data:
            return
        if left := {other: react for other, react in key.data.items() if other != event}:
            self._selector.modify(descriptor, key.events & ~event, left)
        else:
            self._selector.unregister(descriptor)

    def at(self, when: float | None, call: Callable[[], None]) -> Timer:
        """Has ``call`` called at ``when``, on the monotonic clock, or once the timer is moved to a time."""
        timer = Timer(self._timers, call)
        timer.move(when)
        return timer

    def turn(self, until: float | None = None) -> None:
        """Waits until a descriptor is ready or a timer is due, or until ``until``, and calls the functions of all."""
        wake_at = min((timer.when for timer in self._timers), default=inf)
        if until is not None:
            wake_at = min(wake_at, until)
        for key, events in self._selector.select(None if wake_at == inf else max(0.0, wake_at - time.monotonic())):
            for event, react in key.data.items():
                # An earlier function may have closed the descriptor, and may even have opened another of its number.
                if event & events and self._selector.get_map().get(key.fd) is key:
                    react()
        now = time.monotonic()
        for timer in sorted(self._timers, key=lambda timer: timer.when):
            if timer.when <= now:  # an earlier one may have moved it
                timer.fire()

    def close(self) -> None:
        self._selector.close()
