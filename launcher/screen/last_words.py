"""The lines of a rank's output that say why it failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_FATAL: Final = b"Fatal Python error: "
_CRASHED: Final = b"Current thread "
_MOST_FRAMES: Final = 8
_MOST_LINES: Final = 12  # of an error: what a program writes at its end may follow

_OF_TORCH: Final = re.compile(r"\[rank\d+\]:\s?")
_TRACEBACK: Final = "Traceback (most recent call last):"
_NOTHING_NEW: Final = re.compile(
    r"\s*$|-{10,}$|Extension modules: |Set TORCHDYNAMO_VERBOSE=1 |For simplicity, JAX has removed its internal frames "
)


class Crash:
    """Python's report of a crash, without all but the innermost frames of the thread that crashed.

    The report has the stacks of all threads and a list of modules, so that its last lines are seldom those frames.
    """

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._is_current = False

    @staticmethod
    def begins(lines: Iterable[bytes]) -> bool:
        """True if there is a report in ``lines``."""
        return any(line.startswith(_FATAL) for line in lines)

    def feed(self, lines: Iterable[bytes]) -> None:
        """Takes the next lines of the stream."""
        for line in lines:
            if line.startswith(_FATAL):
                self.lines = [line]
            elif len(self.lines) == 1 and line.startswith(_CRASHED):
                self.lines.append(line)
                self._is_current = True
            elif self._is_current and line.startswith(b"  ") and len(self.lines) < 2 + _MOST_FRAMES:
                self.lines.append(line)
            else:
                self._is_current = False


def without_noise(lines: Sequence[str]) -> Sequence[str]:
    """``lines`` without those at the end that are the same for every error."""
    count = len(lines)
    while count and _NOTHING_NEW.match(_OF_TORCH.sub("", lines[count - 1], count=1)):
        count -= 1
    return lines[:count]


def last_words(lines: Sequence[str]) -> Sequence[str]:
    """The error of the last traceback in ``lines``, or what begins with the last unindented line."""
    lines = without_noise(lines)
    bare = [_OF_TORCH.sub("", line, count=1) for line in lines]
    begins = [number for number, line in enumerate(bare) if line[:1].strip()]
    traceback = max((number for number in begins if bare[number].startswith(_TRACEBACK)), default=len(lines))
    error = next((number for number in begins if number > traceback), None)
    return lines[error : error + _MOST_LINES] if error is not None else lines[begins[-1] if begins else 0 :]
