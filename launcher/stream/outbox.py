"""The outgoing half of the stream between hvdrun and an agent, which never blocks.

A loop writes more whenever the other end accepts it. When too much is queued, the producer has to pause, and to
resume once half of it is written; so a slow reader slows down the producer, and memory stays bounded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from .loop import WRITE, Loop
from .sink import Sink

_FULL_BYTES: Final = 4 << 20


class Outbox:
    """Writes frames to ``descriptor``, called ``name`` in messages. ``hold`` is called when `is_full` changes."""

    def __init__(self, loop: Loop, descriptor: int, name: str, hold: Callable[[bool], None]) -> None:
        self._loop = loop
        self._sink = Sink(descriptor, name, limit_bytes=sys.maxsize)
        self._hold = hold
        self.is_full = False

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes that were not written yet."""
        return self._sink.waiting_bytes

    def send(self, frame: bytes) -> None:
        """Sends ``frame`` now or when the other end is ready."""
        self._sink.write(frame)
        self._balance()

    def drain(self, patience_s: float) -> None:
        """Sends the queue, until the other end has accepted nothing for ``patience_s``."""
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
