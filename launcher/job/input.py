"""Forwards hvdrun's stdin to the ranks that read it, no faster than they do.

Each of these ranks has a window: the number of bytes that its agent may hold before the rank's pipe takes them. stdin
is read only while all of them have room, so hvdrun, with the pipe, is never more than 64 KiB ahead of a rank. The end
of the file is passed on.

In the background of a shell with job control, the terminal belongs to another process. SIGTTIN, which would stop hvdrun
there, is blocked while the terminal is read, so that the read fails with EIO instead; then hvdrun checks now and then
whether it is in the foreground again.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import time
from collections.abc import Callable, Collection
from typing import Final

from ..agent.ranks.feed import WINDOW_BYTES
from ..stream.loop import Loop

_LOOK_S: Final = 0.25  # between two looks whether hvdrun is in the foreground


class Input:
    """Reads ``descriptor`` for all ``ranks``.

    ``send`` takes it, rank by rank; no bytes stand for the end. ``entered`` is called when a person has entered a line.
    """

    def __init__(
        self,
        loop: Loop,
        descriptor: int,
        ranks: Collection[int],
        send: Callable[[int, bytes], None],
        entered: Callable[[], None],
    ) -> None:
        self._loop, self._send, self._entered = loop, send, entered
        self._room = dict.fromkeys(ranks, WINDOW_BYTES)
        self._descriptor = _open_anew(descriptor)
        self._is_terminal = os.isatty(descriptor)
        self._is_open = True
        self._is_behind = False  # hvdrun was in the background when it last looked
        self._next_look = loop.at(None, self._look)

    @property
    def is_over(self) -> bool:
        """True if no rank will get any more input."""
        return not self._is_open

    def begin(self) -> None:
        """Reads from now on."""
        self._watch_or_pause()

    def taken(self, rank: int, count: int) -> None:
        """The pipe of ``rank`` has taken ``count`` bytes. Raises ValueError if that is more than it got."""
        if rank in self._room:
            if not 0 < count <= WINDOW_BYTES - self._room[rank]:
                raise ValueError(f"rank {rank} has taken more of stdin than it got")
            self._room[rank] += count
            self._watch_or_pause()

    def left(self, rank: int) -> None:
        """``rank`` reads no more."""
        self._room.pop(rank, None)
        self._watch_or_pause()

    def close(self) -> None:
        """Reads no more."""
        if self._is_open:
            self._is_open = False
            self._next_look.move(None)
            self._loop.unwatch(self._descriptor)
            os.close(self._descriptor)

    def _look(self) -> None:
        """Resumes reading if hvdrun is in the foreground again."""
        self._is_behind = not _is_in_foreground(self._descriptor)
        if self._is_behind:
            self._next_look.move(time.monotonic() + _LOOK_S)
        self._watch_or_pause()

    def _watch_or_pause(self) -> None:
        """Reads when there is input, pauses, or stops for good."""
        if not self._is_open:
            return
        if not self._room:
            self.close()
        elif self._is_behind or not min(self._room.values()):
            self._loop.unwatch(self._descriptor)
        else:
            try:
                self._loop.watch(self._descriptor, self._read)
            except PermissionError:  # a file, which is always ready
                self._read_all()

    def _read_all(self) -> None:
        while self._is_open and min(self._room.values()):
            self._read()

    def _read(self) -> None:
        try:
            data = self._read_what_is_there(min(self._room.values()))
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno == errno.EIO and _has_foreground(self._descriptor):
                self._is_behind = True  # whatever it is now
                self._next_look.move(time.monotonic())
                self._watch_or_pause()
                return
            data = b""  # such as a terminal that is gone, or what was not opened for reading
        for rank in self._room:
            self._room[rank] -= len(data)
            self._send(rank, data)
        if not data:
            self.close()
            return
        if self._is_terminal and data.endswith(b"\n"):
            self._entered()
        if not min(self._room.values()):
            self._loop.unwatch(self._descriptor)

    def _read_what_is_there(self, limit: int) -> bytes:
        if not self._is_terminal:
            return os.read(self._descriptor, limit)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN})
        try:
            return os.read(self._descriptor, limit)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _open_anew(descriptor: int) -> int:
    """A descriptor to read from, non-blocking where possible: O_NONBLOCK would be shared with the shell's own."""
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(kind) or os.isatty(descriptor):
        try:
            return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            pass  # the terminal of another user, as after su
    return os.dup(descriptor)


def _has_foreground(terminal: int) -> bool:
    """True if some process may read ``terminal``: it is there, and this process' controlling one."""
    try:
        return os.tcgetpgrp(terminal) != 0
    except OSError:
        return False


def _is_in_foreground(terminal: int) -> bool:
    """True if this process may read ``terminal``, or if that is gone or not the controlling one."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return True
