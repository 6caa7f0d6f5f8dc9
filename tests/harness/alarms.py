"""Signal handlers that act once a rank's main thread waits, however long it takes to get there."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from hvdlite.engine.apart import wait_briefly
from hvdlite.net.wake import Bell
from hvdlite.planes.staged.staged import Staged

_WAITS = {Bell.wait.__code__, wait_briefly.__code__, Staged.hold_back.__code__}  # of the main thread in hvdlite
_LOOK_S = 0.05


def act_in_a_wait(act: Callable[[], None], after_s: float) -> None:
    """Makes SIGALRM call ``act`` once, after this time and once the main thread waits in hvdlite."""

    def look(_: int, frame: FrameType | None) -> None:
        if _waits(frame):
            signal.setitimer(signal.ITIMER_REAL, 0)
            act()

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, after_s, _LOOK_S)


def raise_in_a_wait(error: type[BaseException], after_s: float) -> None:
    """Makes SIGALRM raise ``error`` once, like `act_in_a_wait`."""

    def fail() -> None:
        raise error

    act_in_a_wait(fail, after_s)


def signal_to_another_thread(number: signal.Signals) -> threading.Thread:
    """A thread that receives the signal for this process once the main thread waits in hvdlite."""
    main = threading.get_ident()

    def receive() -> None:
        while not _waits(sys._current_frames()[main]):
            time.sleep(_LOOK_S)
        signal.raise_signal(number)

    thread = threading.Thread(target=receive)
    thread.start()
    return thread


def _waits(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code not in _WAITS:
        frame = frame.f_back
    return frame is not None
