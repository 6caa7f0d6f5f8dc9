"""Decides when an incomplete line is a prompt, and which part of it is still to be shown. Pure.

A line that has not ended for 50 ms is shown so far, without a prefix, so that an answer can be typed behind it. The
rank's next output continues there, unless something else was written meanwhile, or the answer's newline has ended the
line on the screen.
"""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 0.05


class Prompt:
    """The incomplete line of one stream of ``rank``."""

    def __init__(self) -> None:
        self.rank: int | None = None
        self.due: float | None = None  # when there is more to show
        self.is_open = False  # the cursor is behind what was shown
        self._text = b""
        self._shown = b""  # the beginning of the line that was shown
        self._is_answered = False

    def learn(self, rank: int, text: bytes, now: float) -> None:
        """Notes that the incomplete line is ``text`` now."""
        if text != self._text:
            self.rank, self._text = rank, text
            self.due = now + PATIENCE_S if len(text) > len(self._shown) else None

    def show(self, now: float, is_terminal: bool) -> bytes:
        """The text to write now. A prompt that was cut off before it was answered is repeated on a terminal."""
        is_cut_off = bool(self._shown) and not self.is_open and not self._is_answered
        if not (self.due is not None and now >= self.due) and not (is_cut_off and is_terminal):
            return b""
        start = 0 if is_cut_off and is_terminal else len(self._shown)
        self._shown, self.is_open, self._is_answered, self.due = self._text, True, False, None
        return self._text[start:]

    def cut_off(self) -> None:
        """Notes that something else is written behind it."""
        self.is_open = False

    def answer(self) -> None:
        """Notes that a line was entered."""
        self.is_open, self._is_answered = False, True

    def finish(self, line: bytes) -> tuple[bytes, bool]:
        """The part of the whole ``line`` that was not shown yet, and whether it continues at the cursor."""
        is_continued = line.startswith(self._shown)
        result = (line[len(self._shown) :], self.is_open) if is_continued else (line, False)
        if is_continued:
            self.is_open = False
        self._text = self._shown = b""
        self._is_answered, self.due = False, None
        return result
