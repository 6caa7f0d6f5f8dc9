"""When an unfinished line is taken for a prompt, and what of it is still to be shown: pure bookkeeping.

A line that has not ended for 50 ms is shown as far as it has come, without a prefix, so that an answer can be typed
behind it. What the rank writes next goes on there, unless somebody else has written meanwhile, or the answer's newline
has ended the line on the screen.
"""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 0.05


class Prompt:
    """The unfinished line of one stream, of ``rank``."""

    def __init__(self) -> None:
        self.rank: int | None = None
        self.due: float | None = None  # when there is more to show
        self.is_open = False  # the cursor is behind what was shown
        self._text = b""
        self._shown = b""  # the beginning of the line that was shown
        self._is_answered = False

    def learn(self, rank: int, text: bytes, now: float) -> None:
        """The unfinished line is ``text`` now."""
        if text != self._text:
            self.rank, self._text = rank, text
            self.due = now + PATIENCE_S if len(text) > len(self._shown) else None

    def show(self, now: float, is_terminal: bool) -> bytes:
        """What to write now. A terminal gets a prompt again that was cut off before it was answered."""
        is_cut_off = bool(self._shown) and not self.is_open and not self._is_answered
        if not (self.due is not None and now >= self.due) and not (is_cut_off and is_terminal):
            return b""
        start = 0 if is_cut_off and is_terminal else len(self._shown)
        self._shown, self.is_open, self._is_answered, self.due = self._text, True, False, None
        return self._text[start:]

    def cut_off(self) -> None:
        """Something else is written behind it."""
        self.is_open = False

    def answer(self) -> None:
        """A line was entered."""
        self.is_open, self._is_answered = False, True

    def finish(self, line: bytes) -> tuple[bytes, bool]:
        """What of the whole ``line`` was not shown yet, and whether it goes on where the cursor is."""
        is_continued = line.startswith(self._shown)
        result = (line[len(self._shown) :], self.is_open) if is_continued else (line, False)
        if is_continued:
            self.is_open = False
        self._text = self._shown = b""
        self._is_answered, self.due = False, None
        return result
