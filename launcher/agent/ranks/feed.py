"""The stdin of one worker, which its agent fills with hvdrun's input as fast as the worker reads."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ...stream.loop import Loop
from ...stream.sink import Sink

_PIPE_BYTES: Final = 16 << 10
WINDOW_BYTES: Final = (64 << 10) - _PIPE_BYTES  # of what was sent and is not in the pipe
OnTaken = Callable[[int | None], None]


def open_pipe() -> tuple[int, int]:
    """The end for the worker and the end for its `Feed`."""
    read, written = os.pipe()
    with suppress(OSError):
        fcntl.fcntl(written, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return read, written


class Feed:
    """Writes to ``pipe``. ``on_taken`` gets the number of bytes that the pipe took, and None once nobody reads it."""

    def __init__(self, loop: Loop, pipe: int, on_taken: OnTaken) -> None:
        self._on_taken = on_taken
        self._pipe: int | None = pipe
        self._sink = Sink(pipe, "stdin", WINDOW_BYTES, loop, self._report)
        self._waiting_bytes = 0  # as was last reported
        self._is_ended = False

    def give(self, data: bytes) -> None:
        """Passes on ``data``; empty at the end of the file."""
        if self._pipe is None or self._is_ended:
            return
        self._is_ended = not data
        self._waiting_bytes += len(data)
        if data:
            self._sink.write(data)
        else:
            self._report()

    def close(self) -> None:
        """Closes the pipe and drops what was not written."""
        if self._pipe is not None:
            self._sink.close()
            os.close(self._pipe)
            self._pipe = None

    def _report(self) -> None:
        if self._sink.problem:
            self.close()
            self._on_taken(None)
            return
        taken, self._waiting_bytes = self._waiting_bytes - self._sink.waiting_bytes, self._sink.waiting_bytes
        if taken:
            self._on_taken(taken)
        if self._is_ended and not self._waiting_bytes:
            self.close()
