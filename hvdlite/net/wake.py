"""Wakes a thread that sleeps."""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Callable
from functools import partial

# Called with the GIL held, unlike os.eventfd_write: it never blocks, and a submitter that let the GIL go here would
# hand it to the coordinator in the middle of a burst, for one tensor at a time. So the coordinator runs when the
# submitter waits or computes, and finds the whole burst instead of waking up again and again.
_eventfd_write = ctypes.PyDLL(None).eventfd_write
_eventfd_write.argtypes = (ctypes.c_int, ctypes.c_uint64)


class Wake:
    """An eventfd. `fd` polls readable after `set` until `clear`; any thread may call `set`."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        _eventfd_write(self.fd, 1)

    def clear(self) -> None:
        os.eventfd_read(self.fd)

    def close(self) -> None:
        fd, self.fd = self.fd, -1  # a late `set` then fails, and does not write to whatever has the number next
        if fd >= 0:
            os.close(fd)


def _too_late() -> None:
    """The `release` of a closed bell: another file may have the number of its descriptor by then."""


class Bell:
    """Wakes one thread, even if it rang before `wait` was called, or rang for an earlier wait.

    It lives until `close` or until nobody refers to it. Ringing releases the GIL, because the ringing thread has
    nothing left to do.
    """

    _fd = -1
    release: Callable[[], None]

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._fd, select.EPOLLIN | select.EPOLLET)  # by edges: the count is never read
        self.release = partial(os.eventfd_write, self._fd, 1)  # ends the next or the present `wait`

    def wait(self, timeout_s: float | None = None) -> None:
        """Returns when the bell has rung since the last call, or the time is over. Signal handlers run meanwhile."""
        self._poll.poll(timeout_s, 1)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.release = _too_late
            os.close(fd)
            self._poll.close()

    __del__ = close
