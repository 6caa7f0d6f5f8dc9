"""How busy a process or a thread was while it had nothing to do.

Whoever polls wakes up often, or computes all the time. A busy machine changes neither: it does not wake a thread that
sleeps, and what a few wake-ups take, in processor time, is far from what a thread takes that computes.
"""

from __future__ import annotations

import resource

_MOST_CPU = 0.1  # of the time that a test lets pass


class Effort:
    """From its beginning on, what this process has done, or only this thread if ``of_thread``."""

    def __init__(self, of_thread: bool = False) -> None:
        self._whose = resource.RUSAGE_THREAD if of_thread else resource.RUSAGE_SELF
        self._before = self._now()

    def excess(self, wakes: int, within_s: float) -> str:
        """What is more than so many wake-ups, or much of the processor, in so many seconds; empty if nothing is."""
        woke, spent_s = (now - before for now, before in zip(self._now(), self._before, strict=True))
        is_idle = woke <= wakes and spent_s <= _MOST_CPU * within_s
        return "" if is_idle else f"it woke {woke:.0f} times and computed for {spent_s:.3f} s"

    def _now(self) -> tuple[float, float]:
        usage = resource.getrusage(self._whose)
        return usage.ru_nvcsw, usage.ru_utime + usage.ru_stime
