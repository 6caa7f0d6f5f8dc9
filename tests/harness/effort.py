"""Measures how busy a process or a thread was while it had nothing to do.

Polling shows as many wake-ups, or as processor time. A busy machine changes neither: it does not wake a sleeping
thread, and a few wake-ups take far less processor time than a thread that computes.
"""

from __future__ import annotations

import resource

_MOST_CPU = 0.1  # share of the time that a test lets pass


class Effort:
    """The effort of this process since creation, or only of this thread if ``of_thread``."""

    def __init__(self, of_thread: bool = False) -> None:
        self._whose = resource.RUSAGE_THREAD if of_thread else resource.RUSAGE_SELF
        self._before = self._now()

    def excess(self, wakes: int, within_s: float) -> str:
        """Describes wake-ups beyond this number, or high processor time, in so many seconds; empty if none."""
        woke, spent_s = (now - before for now, before in zip(self._now(), self._before, strict=True))
        is_idle = woke <= wakes and spent_s <= _MOST_CPU * within_s
        return "" if is_idle else f"it woke {woke:.0f} times and computed for {spent_s:.3f} s"

    def _now(self) -> tuple[float, float]:
        usage = resource.getrusage(self._whose)
        return usage.ru_nvcsw, usage.ru_utime + usage.ru_stime
