"""Notices that the program of this rank has ended and its process has not: Python waits for threads of the program.

No other rank has to wait for it, so nothing else would report it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from hvdlite.blackbox.format import Finding

_MARGIN: Final = 1.1  # if other ranks wait for this one, that has been reported by then
_MARGIN_S: Final = 2.0
_MOST_NAMES: Final = 4
_MOST_CHARACTERS: Final = 100


class Lingering:
    """Asked repeatedly by a thread that Python does not wait for; ``patience_s`` is that of `Recorder`."""

    def __init__(self, patience_s: float) -> None:
        self._limit_s = _MARGIN * patience_s + _MARGIN_S if patience_s > 0 else 0.0
        self._since: float | None = None
        self._batches = 0.0
        self._was_reported = False

    def look(self, now: float, batches: float, is_waiting: bool) -> Finding | None:
        """The finding to report at ``now``; each rank reports one at most.

        A program whose number of ``batches`` grows has not ended, nor has one that ``is_waiting`` for other ranks.
        """
        if not _program_has_ended() or is_waiting or batches != self._batches:
            self._since, self._batches = None, batches
            return None
        self._since = now if self._since is None else self._since
        seconds = now - self._since
        if self._was_reported or not 0 < self._limit_s <= seconds:
            return None
        self._was_reported = True
        names = [thread.name[:_MOST_CHARACTERS] for thread in awaited()]
        return Finding(
            "lingers",
            f"the program has ended {seconds:.0f} s ago, and its process has not",
            {"seconds": seconds, "threads": names[:_MOST_NAMES], "count": len(names)},
        )


def awaited() -> list[threading.Thread]:
    """The threads for which Python waits at the end of the program."""
    return [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]


def _program_has_ended() -> bool:
    # While Python waits for the threads of pools, `is_alive` of the main thread is still true.
    return getattr(threading, "_SHUTTING_DOWN", False) or not threading.main_thread().is_alive()


def at_end_of_program(call: Callable[[], None]) -> None:
    """Calls ``call``, and no function passed earlier, before Python waits for threads at the end of the program."""
    global _call
    if _call is None:
        register = getattr(threading, "_register_atexit", None)  # of CPython, for its own pools
        with suppress(RuntimeError):  # the end has begun
            if register is not None:
                register(_at_end)
    _call = call, os.getpid()


def _at_end() -> None:
    if _call is not None and _call[1] == os.getpid():  # not in a forked child
        _call[0]()


_call: tuple[Callable[[], None], int] | None = None
