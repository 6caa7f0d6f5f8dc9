"""The outgoing half of the stream between hvdrun and an agent, which never blocks.

When too much is queued, the producer has to pause, and to resume once half of it is written; so a slow reader slows
down the producer, and memory stays bounded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from .loop import Loop
from .sink import Sink

_FULL_BYTES: Final = 4 << 20


class Outbox(Sink):
    """Writes frames to ``descriptor``, called ``name`` in messages. ``hold`` is called when `is_full` changes."""

    def __init__(self, loop: Loop, descriptor: int, name: str, hold: Callable[[bool], None]) -> None:
        super().__init__(descriptor, name, sys.maxsize, loop, self._judge)
        self._hold = hold
        self.is_full = False

    def _judge(self) -> None:
        room = _FULL_BYTES // 2 if self.is_full else _FULL_BYTES
        if self.is_full != (self.waiting_bytes > room):
            self.is_full = not self.is_full
            self._hold(self.is_full)
