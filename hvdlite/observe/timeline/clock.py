"""How the clock of another host differs from the own one, from questions and answers. Pure.

The answer says what the other clock showed at some moment between question and answer. Half the time between them
bounds the error, and clocks drift apart afterwards. So the sample with the smallest sum of both counts.
"""

from __future__ import annotations

from typing import Final

_DRIFT: Final = 1e-4  # twice that of a bad crystal


class Difference:
    """``shift`` added to a time of the own clock is the time of the other, with an error of ``error_s`` at most."""

    def __init__(self) -> None:
        self.shift = 0.0
        self._error_s = float("inf")
        self._at = 0.0

    def error_s(self, now: float) -> float:
        """Returns the largest error at ``now``, by the own clock, in seconds."""
        return self._error_s + max(0.0, now - self._at) * _DRIFT

    def add(self, asked_at: float, answered_at: float, theirs: float) -> None:
        """Takes in an answer: between two times of the own clock the other showed ``theirs``."""
        error_s = (answered_at - asked_at) / 2
        if error_s <= self.error_s(answered_at):
            self.shift = theirs - (asked_at + answered_at) / 2
            self._error_s, self._at = error_s, answered_at
