"""An event loop: each descriptor has one function that is called when it is ready."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Final

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE


class Loop:
    """Calls functions of descriptors. A descriptor is watched for reading or writing; duplicate it for both."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, descriptor: int, react: Callable[[], None], events: int = READ) -> None:
        """Has ``react`` called when ``descriptor`` is ready; does nothing if it is watched already."""
        if descriptor not in self._selector.get_map():
            self._selector.register(descriptor, events, react)

    def unwatch(self, descriptor: int) -> None:
        """Forgets ``descriptor``, if it is watched. Call it before the descriptor is closed."""
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def turn(self, timeout_s: float | None) -> None:
        """Waits until a descriptor is ready, at most ``timeout_s``, and calls the functions of all that are."""
        for key, _ in self._selector.select(timeout_s):
            # An earlier one of this turn may have closed it, and may even have opened another of the same number.
            if self._selector.get_map().get(key.fd) is key:
                key.data()

    def close(self) -> None:
        self._selector.close()
