"""Waits that end early when their result is no longer wanted.

``init`` waits for other ranks in a thread of its own, because signal handlers may raise anywhere in the main one. When
one does, the waiting thread is told to give up, and checks for that where it waits.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from hvdlite.net.poll import comes

_LOOK_S: Final = 0.1

Told = Callable[[], object]


class GivenUp(BaseException):
    """This thread was told to give up."""


class _Own(threading.local):
    is_told: Told | None = None


_own = _Own()


@contextmanager
def giving_up_when(is_told: Told) -> Iterator[None]:
    """A context in which this thread's waits raise GivenUp, once, when ``is_told`` returns something true.

    Within another such context they raise for the reason of either.
    """
    outer = _own.is_told
    _own.is_told = is_told if outer is None else lambda: is_told() or outer()
    try:
        yield
    finally:
        if _own.is_told is not None:
            _own.is_told = outer


def seconds_until(deadline: float) -> float:
    """The time to wait before calling this again, until ``deadline`` (monotonic) at most. May raise GivenUp."""
    left_s = max(0.0, deadline - time.monotonic())
    is_told = _own.is_told
    if is_told is None:
        return left_s
    if reason := is_told():
        _own.is_told = None  # what is closed now may wait, too
        raise GivenUp(reason)
    return min(left_s, _LOOK_S)


def wait_readable(sock: socket.socket, deadline: float) -> None:
    """Returns when ``sock`` has data or has ended. Raises TimeoutError at ``deadline``, or GivenUp."""
    while not comes(sock, select.POLLIN):  # what has come is not given up
        if comes(sock, select.POLLIN, seconds_until(deadline)):
            return
        if time.monotonic() >= deadline:
            raise TimeoutError("timed out")
