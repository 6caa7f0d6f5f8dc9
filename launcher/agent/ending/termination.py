"""Ends the processes that workers left behind: SIGTERM after a while, SIGKILL later."""

from __future__ import annotations

import signal
import time

from ...stream.loop import Loop
from ..ranks.workers import Workers


class Termination:
    """Ends ``workers`` and everything they started, once it `has_begun`. Times are monotonic."""

    def __init__(self, workers: Workers, loop: Loop) -> None:
        self._workers = workers
        self._timer = loop.at(None, self.go_on)
        self.has_begun = False
        self._terminate_at: float | None = None
        self._kill_at: float | None = None

    def begin(self, grace_s: float, patience_s: float = 0.0) -> None:
        """Sends SIGTERM after ``patience_s``, and SIGKILL ``grace_s`` later. Of several calls the shorter times win."""
        terminate_at = time.monotonic() + patience_s
        kill_at = terminate_at + grace_s
        if not self.has_begun:
            self.has_begun, self._terminate_at, self._kill_at = True, terminate_at, kill_at
        else:
            self._terminate_at = self._terminate_at and min(self._terminate_at, terminate_at)
            self._kill_at = self._kill_at and min(self._kill_at, kill_at)
        self.go_on()

    def go_on(self) -> None:
        """Sends the signals that are due. Call it after the end of any process.

        SIGTERM does not wait if all remaining processes ignore Ctrl-C.
        """
        if self._terminate_at is not None and (
            time.monotonic() >= self._terminate_at or self._workers.all_ignore(signal.SIGINT)
        ):
            self._terminate_at = None
            self._workers.signal_everyone(signal.SIGTERM)
        if self.has_begun and (self._kill_at is None or time.monotonic() >= self._kill_at):
            # The death of a child makes its own children the agent's; the end of that child brings it here again.
            self._kill_at = None
            self._workers.signal_everyone(signal.SIGKILL)
        times = [when for when in (self._terminate_at, self._kill_at) if when is not None]
        self._timer.move(min(times, default=None))
