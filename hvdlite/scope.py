"""How long an operation may wait, and whether its result is still wanted.

A function that waits takes a `Scope` from its caller, as in trio: the deadline of the whole operation is fixed once,
and a waiting thread can be stopped. A scope within another one ends no later than the outer one. Agents import this
module, so it needs the standard library only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

_LOOK_S: Final = 0.1  # how often a wait looks whether it was cancelled


class Cancelled(BaseException):
    """The operation was cancelled; its argument is the reason. Not an Exception, so that no handler mistakes it."""


class Scope:
    """A deadline, on the monotonic clock in seconds, and the reason to stop waiting once it is cancelled."""

    def __init__(self, deadline: float = math.inf, within: Scope | None = None, watch: Callable[[], str] = str) -> None:
        """Waits call ``watch``, which returns the reason to stop, or an empty text."""
        self.deadline: float = deadline if within is None else min(deadline, within.deadline)
        self._outer = within
        self._watch = watch
        self._reason = ""

    @classmethod
    def of(cls, seconds: float, within: Scope | None = None) -> Scope:
        """A scope that ends in ``seconds``."""
        return cls(time.monotonic() + seconds, within)

    def later(self, seconds: float) -> Scope:
        """A scope that ends ``seconds`` later than this one, and is cancelled with it."""
        return Scope(self.deadline + seconds, watch=lambda: self.cancelled)

    def cancel(self, reason: str) -> None:
        """Makes every wait in this scope, and in those within it, raise Cancelled. Any thread may call it."""
        self._reason = self._reason or reason

    @property
    def cancelled(self) -> str:
        """The reason to stop waiting; empty if there is none."""
        # Another thread may cancel meanwhile, so nothing is written unless there is a reason.
        if not self._reason and (reason := self._watch() or ("" if self._outer is None else self._outer.cancelled)):
            self.cancel(reason)
        return self._reason

    @property
    def left_s(self) -> float:
        """The seconds until the deadline; 0 after it."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def timeout_s(self) -> float | None:
        """The same for waits of the standard library: None without a deadline."""
        return None if math.isinf(self.deadline) else self.left_s

    @property
    def is_over(self) -> bool:
        """True if the deadline has passed."""
        return time.monotonic() >= self.deadline

    def check(self) -> None:
        """Raises Cancelled if this scope was cancelled."""
        if reason := self.cancelled:
            raise Cancelled(reason)

    def pause_s(self) -> float:
        """The seconds to wait before the next check: few enough to notice a cancellation soon. Raises Cancelled."""
        self.check()
        return min(self.left_s, _LOOK_S)
