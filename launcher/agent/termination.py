"""How an agent ends what is left of its workers: SIGTERM after a time, SIGKILL after another."""

from __future__ import annotations

import signal
import time

from .workers import Workers


class Termination:
    """The end of ``workers`` and of all that they started, once it `has_begun`. Times are monotonic."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.has_begun = False
        self._terminate_at: float | None = None
        self._kill_at: float | None = None

    @property
    def due(self) -> float | None:
        """When `go_on` has something to do."""
        return min((when for when in (self._terminate_at, self._kill_at) if when is not None), default=None)

    def begin(self, grace_s: float, patience_s: float = 0.0) -> None:
        """Sends SIGTERM after ``patience_s``, and SIGKILL ``grace_s`` later. Of several calls what is shorter wins."""
        terminate_at = time.monotonic() + patience_s
        kill_at = terminate_at + grace_s
        if not self.has_begun:
            self.has_begun, self._terminate_at, self._kill_at = True, terminate_at, kill_at
        else:
            self._terminate_at = self._terminate_at and min(self._terminate_at, terminate_at)
            self._kill_at = self._kill_at and min(self._kill_at, kill_at)
        self.go_on()

    def go_on(self) -> None:
        """Sends what is due. SIGTERM needs no patience when all that is left ignores Ctrl-C."""
        if self._terminate_at is not None and (
            time.monotonic() >= self._terminate_at or self._workers.all_ignore(signal.SIGINT)
        ):
            self._terminate_at = None
            self._workers.signal_everyone(signal.SIGTERM)
        if self.has_begun and (self._kill_at is None or time.monotonic() >= self._kill_at):
            # The death of a child makes its own children the agent's; SIGCHLD brings it here again for them.
            self._kill_at = None
            self._workers.signal_everyone(signal.SIGKILL)
