"""Interrupts of a rank's main thread that come when it waits, however long it takes to get there."""

from __future__ import annotations

import signal
from types import FrameType

from hvdlite.runtime.apart import is_seen
from hvdlite.runtime.wake import Bell

_WAITS = {Bell.wait.__code__, is_seen.__code__}  # of the main thread in hvdlite
_LOOK_S = 0.05


def raise_in_a_wait(error: type[BaseException], after_s: float) -> None:
    """Has SIGALRM raise ``error`` once, when this time is over and the main thread waits in hvdlite."""

    def look(_: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code not in _WAITS:
            frame = frame.f_back
        if frame is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise error

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, after_s, _LOOK_S)
