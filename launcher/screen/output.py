"""Assembles a worker's output into lines. Pure: bytes in, lines out.

A line ends at a newline; the worker's bytes pass unchanged, in any encoding. A carriage return inside a line marks a
progress bar that overwrites itself: only the last state of such a line is kept. While it is unfinished it is the
stream's `progress`, which a terminal shows in place and a log shows now and then.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

MAX_LINE_BYTES: Final = 1 << 20
_COLOURS: Final = (36, 33, 32, 35, 34, 31)


class Stream(Enum):
    """A worker's output streams."""

    STDOUT = "stdout"
    STDERR = "stderr"


class LineAssembler:
    """The lines of one stream. A line longer than MAX_LINE_BYTES is cut, so that memory stays bounded."""

    def __init__(self) -> None:
        self._tail = b""  # since the last newline or carriage return
        self._state = b""  # the last text before a carriage return of this line
        self._is_progress = False  # this line has had a carriage return

    @property
    def unfinished(self) -> bytes:
        """The incomplete line, such as a prompt, unless it is a progress bar."""
        return b"" if self._is_progress else self._tail

    @property
    def progress(self) -> bytes:
        """The current state of a progress bar; empty if the incomplete line is none."""
        return (self._tail or self._state) if self._is_progress else b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes, without their newline."""
        *lines, rest = (self._tail + data).split(b"\n")
        finished = [self._finish(line) for line in lines]
        self._hold(rest)
        if len(self._tail) > MAX_LINE_BYTES:
            finished.append(self._finish(self._tail))
            self._tail = b""
        return finished

    def end(self) -> list[bytes]:
        """The last line, if the stream ended without a newline. A progress bar that erased itself leaves none."""
        last = self._finish(self._tail)
        self._tail = b""
        return [last] if last.strip() else []

    def _hold(self, rest: bytes) -> None:
        *segments, self._tail = rest.split(b"\r")
        if segments:
            self._is_progress = True
            self._state = _last(segments) or self._state

    def _finish(self, line: bytes) -> bytes:
        last = _last(line.split(b"\r")) if b"\r" in line else line
        finished = last or self._state
        self._state, self._is_progress = b"", False
        return finished


def prefix(rank: int, stream: Stream, *, stamp: str = "", is_coloured: bool = False) -> bytes:
    """The prefix of a line, in Horovod's format: ``[1]<stdout>:``, after ``stamp`` if there is one."""
    text = f"{stamp}[{rank}]<{stream.value}>:"
    if is_coloured:
        text = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{text}\x1b[0m"
    return text.encode()


def _last(segments: list[bytes]) -> bytes:
    return next((segment for segment in reversed(segments) if segment), b"")
