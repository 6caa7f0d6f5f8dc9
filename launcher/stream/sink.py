"""Writes to a descriptor without ever waiting for its reader.

Training must not wait for a terminal that is stopped with Ctrl-S or a pager that nobody scrolls. Output that cannot be
written is kept up to a limit, and a loop writes it; beyond the limit it is dropped and counted. The file is reopened
where Linux allows it, because O_NONBLOCK belongs to the open file and not to the descriptor, and the shell shares ours.
"""

from __future__ import annotations

import os
import select
import stat
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from .loop import WRITE, Loop

LIMIT_BYTES: Final = 64 << 20
_WRITE_BYTES: Final = 64 << 10
_TOO_SLOW: Final = "its reader is too slow"


class Sink:
    """An output that never blocks; ``name`` is for messages.

    ``loop`` writes what is kept, and ``changed`` is called after each attempt to write.
    """

    def __init__(
        self,
        descriptor: int,
        name: str,
        limit_bytes: int = LIMIT_BYTES,
        loop: Loop | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.lost_bytes = 0
        self.problem = ""  # why bytes were lost, empty while none were
        self._queue: deque[bytes] = deque()  # no empty pieces
        self._queued_bytes = 0
        self._limit_bytes = limit_bytes
        self._is_broken = False
        self._loop, self._changed = loop, changed
        self._descriptor, self._is_ours, self._step = _open_anew(descriptor)

    def fileno(self) -> int:
        return self._descriptor

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes that are kept until the reader is ready."""
        return self._queued_bytes

    def write(self, data: bytes) -> None:
        """Writes ``data`` now, keeps it, or drops and counts it."""
        if self._is_broken or self._queued_bytes + len(data) > self._limit_bytes:
            self.lost_bytes += len(data)
            self.problem = self.problem or _TOO_SLOW
            self._changed()
            return
        if not data:
            return
        self._queue.append(data)
        self._queued_bytes += len(data)
        if len(self._queue) == 1:
            self._write()
        self._balance()

    def flush(self) -> None:
        """Writes what can be written without waiting."""
        self._write()
        self._balance()

    def leave(self) -> None:
        """Leaves the loop; what is kept waits for `drain` from now on."""
        if self._loop is not None:
            self._loop.unwatch(self._descriptor, WRITE)
            self._loop = None

    def _balance(self) -> None:
        if self._loop is not None and self._queue:
            self._loop.watch(self._descriptor, self.flush, WRITE)
        elif self._loop is not None:
            self._loop.unwatch(self._descriptor, WRITE)
        self._changed()

    def _write(self) -> None:
        try:
            while self._queue and self._is_ready(0):
                written = os.write(self._descriptor, self._queue[0][: self._step])
                self._queued_bytes -= written
                if rest := self._queue.popleft()[written:]:
                    self._queue.appendleft(rest)
        except BlockingIOError:
            return
        except OSError as error:
            self._is_broken = True
            self._drop(error.strerror or str(error))

    def drain(self, patience_s: float) -> None:
        """Writes everything that is kept, until the reader has accepted nothing for ``patience_s``."""
        while self._queue and self._is_ready(patience_s):
            self._write()
        if self._queue:
            self._drop(_TOO_SLOW)

    def close(self) -> None:
        self.leave()
        if self._is_ours:
            os.close(self._descriptor)
            self._is_ours = False

    def _drop(self, problem: str) -> None:
        self.problem = self.problem or problem
        self.lost_bytes += self._queued_bytes
        self._queued_bytes = 0
        self._queue.clear()

    def _is_ready(self, timeout_s: float) -> bool:
        poller = select.poll()
        poller.register(self._descriptor, select.POLLOUT)
        return bool(poller.poll(timeout_s * 1000))


def _open_anew(descriptor: int) -> tuple[int, bool, int]:
    """A descriptor to write to, whether to close it, and the largest write that does not block."""
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor, False, _WRITE_BYTES  # a file is always ready, and another opening would start at its front
    with suppress(OSError):
        return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC), True, _WRITE_BYTES
    return descriptor, False, select.PIPE_BUF  # what a descriptor that polls as ready takes without waiting
