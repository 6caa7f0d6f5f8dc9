"""The time that the training loop waits for data, as the hooks of a front end measure it.

Only the thread that called `init` counts: threads that load ahead cost the program nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from time import monotonic
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Loading:
    """Adds up the calls of ``thread``; a call inside another one counts as part of it."""

    def __init__(self) -> None:
        self.thread = threading.main_thread().ident
        self._state = (0.0, 0.0)  # the sum, and the begin of a running call; one object, so that readers need no lock

    def timed(self, load: Callable[P, R]) -> Callable[P, R]:
        """Returns ``load``, whose calls count from now on."""

        @wraps(load)
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            sum_s, since = self._state
            if since or threading.get_ident() != self.thread:
                return load(*args, **kwargs)
            try:
                self._state = sum_s, monotonic()
                return load(*args, **kwargs)
            finally:
                since = self._state[1]  # still 0 if a signal handler raised before the call
                self._state = sum_s + (monotonic() - since if since else 0.0), 0.0

        return timed

    def seconds(self, now: float) -> float:
        """The sum at ``now``, on the monotonic clock, including a running call."""
        sum_s, since = self._state
        return sum_s + (max(0.0, now - since) if since else 0.0)


loading = Loading()
"""The one of this process."""
