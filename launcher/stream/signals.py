"""Signals of this process as bytes that a loop can read."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a job to end."""
ANNOUNCING: Final = (signal.SIGUSR1, signal.SIGUSR2)
"""Those by which a scheduler announces that it will take the hosts away; they are meant for the ranks."""


@contextmanager
def caught(signals: Iterable[signal.Signals]) -> Iterator[int]:
    """A descriptor that yields the numbers of ``signals`` as they come; those that are ignored stay ignored."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    previous = {}
    old_wakeup = signal.set_wakeup_fd(write)
    try:
        for signum in signals:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                previous[signum] = signal.signal(signum, lambda *_: None)
        yield read
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(old_wakeup)
        with suppress(OSError):
            os.close(read)
            os.close(write)
