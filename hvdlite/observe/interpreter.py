"""The time that this rank's Python loses to garbage collection and to waits for the GIL.

A thread sleeps, and then needs the GIL: its lateness, without the time in which it waited for a processor, is a wait
for the GIL. That is the interpreter's switch interval, 5 ms, while another thread computes in Python, and else almost
0.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Final

from hvdlite.metrics.table import COLLECTED_S, COVERED_S, GIL_LATE_S, GIL_SLEEPS, Quantities

_NANO: Final = 1e-9


class Interpreter:
    """Counts collections from now on, and waits for the GIL by `sleep`, which one thread calls; until `close`."""

    def __init__(self) -> None:
        self._collected_s = self._late_s = self._delayed_s = 0.0
        self._sleeps = 0
        self._began_at = monotonic()
        self._collecting_since: float | None = None
        self._schedstat: int | None = None
        gc.callbacks.append(self._collect)

    def sleep(self, seconds: float, is_closed: threading.Event) -> bool:
        """Sleeps, and measures how late this thread is afterwards. True if it ``is_closed``, at once."""
        if self._schedstat is None:
            with suppress(OSError):
                self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            self._delayed_s = self._delay_s()
        due = monotonic() + seconds
        if is_closed.wait(seconds):
            return True
        late_s, before_s = monotonic() - due, self._delayed_s
        self._delayed_s = self._delay_s()
        self._late_s += max(0.0, late_s - (self._delayed_s - before_s))
        self._sleeps += 1
        return False

    def quantities(self) -> Quantities:
        """The quantities of this rank's Python."""
        return {
            COLLECTED_S: self._collected_s,
            GIL_LATE_S: self._late_s,
            GIL_SLEEPS: self._sleeps,
            COVERED_S: monotonic() - self._began_at,
        }

    def close(self) -> None:
        """Stops counting."""
        with suppress(ValueError):  # the program may have removed it
            gc.callbacks.remove(self._collect)
        if self._schedstat is not None:
            os.close(self._schedstat)
            self._schedstat = None

    def _collect(self, phase: str, info: Mapping[str, int]) -> None:
        """Called by the collector, with the GIL, in whatever thread it runs."""
        if phase == "start":
            self._collecting_since = monotonic()
        elif self._collecting_since is not None:
            self._collected_s += monotonic() - self._collecting_since
            self._collecting_since = None

    def _delay_s(self) -> float:
        """For how long this thread has waited for a processor; 0 if the kernel does not count that."""
        if self._schedstat is not None:
            with suppress(OSError, ValueError, IndexError):
                return int(os.pread(self._schedstat, 128, 0).split()[1]) * _NANO
        return 0.0
