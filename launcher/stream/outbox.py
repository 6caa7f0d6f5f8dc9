"""What one end of the stream between hvdrun and an agent has to send, on its way without anybody waiting for it.

A loop writes on whenever the other end takes more. When too much waits, whoever fills the outbox is told to hold on,
and to go on once half of it has gone; so a slow end slows down what it is sent, and memory stays bounded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from .loop import WRITE, Loop
from .sink import Sink

_FULL_BYTES: Final = 4 << 20


class Outbox:
    """Frames for ``descriptor``, whose reader messages call ``name``. ``hold`` is called when `is_full` changes."""

    def __init__(self, loop: Loop, descriptor: int, name: str, hold: Callable[[bool], None]) -> None:
        self._loop = loop
        self._sink = Sink(descriptor, name, limit_bytes=sys.maxsize)
        self._hold = hold
        self.is_full = False

    @property
    def waiting_bytes(self) -> int:
        """How much of what was sent is still here."""
        return self._sink.waiting_bytes

    def send(self, frame: bytes) -> None:
        """Sends ``frame`` now, or when the other end is ready."""
        self._sink.write(frame)
        self._balance()

    def drain(self, patience_s: float) -> None:
        """Sends all that is kept, until the other end has taken nothing for ``patience_s``."""
        self._sink.drain(patience_s)

    def close(self) -> None:
        """Leaves the loop and frees the descriptor's duplicate."""
        self._loop.unwatch(self._sink.fileno())
        self._sink.close()

    def _flush(self) -> None:
        self._sink.flush()
        self._balance()

    def _balance(self) -> None:
        if self._sink.waiting_bytes:
            self._loop.watch(self._sink.fileno(), self._flush, WRITE)
        else:
            self._loop.unwatch(self._sink.fileno())
        room = _FULL_BYTES // 2 if self.is_full else _FULL_BYTES
        if self.is_full != (self._sink.waiting_bytes > room):
            self.is_full = not self.is_full
            self._hold(self.is_full)
