"""A JSON array in a file that is complete whenever anybody opens it, and still when its writer was killed.

A file that is appended to is torn at some instants. So there are two of equal history: one has the name, the other
is hidden beside it. What comes is written to the hidden one, behind what that one lacks, and then the two exchange
their names, which is atomic. So each byte is written twice, whatever the length of the file.

A reader may have opened the file before the exchange, and read on from what is hidden now. A lease (``F_SETLEASE``) is
granted on a file that nobody else has open, and holds back whoever is about to open it. Where it is not granted, or
where the file system has no leases, the file is copied, and the copy is written to. The caller spaces its calls by
their cost, so that these copies too take a fixed share of the time.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import stat
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

_BEGIN: Final = b"[\n"
_END: Final = b"\n]\n"
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_F_SETOWN_EX: Final = 15
_F_OWNER_TID: Final = 0


class JsonArrayFile:
    """The file at ``path``, which it replaces, with nothing in it at first. Raises OSError, as `append` does.

    For one thread, which must block SIGURG: the kernel sends it that when somebody wants a file that has a lease.
    """

    def __init__(self, path: str | Path) -> None:
        given, path = path, Path(os.path.realpath(path))
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(path.stat().st_mode):
                raise OSError(errno.EINVAL, "it is no regular file", str(given))
        self.path = path
        self._next = path.with_name(f".{path.name}.next")
        self._end = len(_BEGIN)  # of the events in the file that has the name
        self._lacking = b""  # what the hidden file does not have of them
        self._hidden: int | None = None
        try:
            self._shown = self._made()
            try:
                _write(self._shown, _BEGIN + _END, 0)
                os.rename(self._next, path)
            except OSError:
                self._remove_hidden()
                os.close(self._shown)
                raise
        except OSError as error:  # of the hidden file, of which the user has not heard
            raise OSError(error.errno, error.strerror, str(given)) from None

    def append(self, events: bytes) -> None:
        """Appends ``events``, which are separated by commas. After an OSError the file is as before, and stays so."""
        if self._end > len(_BEGIN):
            events = b",\n" + events
        hidden = self._hidden
        if hidden is not None and _lease(hidden):
            try:
                _write(hidden, self._lacking + events + _END, self._end - len(self._lacking))
            finally:
                fcntl.fcntl(hidden, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        else:
            hidden = self._copy(events)
        is_named = _exchange(self._next, self.path)
        if not is_named:
            os.rename(self._next, self.path)
        self._shown, self._hidden = hidden, self._shown
        if not is_named:
            os.close(self._hidden)
            self._hidden = None
        self._end += len(events)
        self._lacking = events

    def close(self) -> None:
        """Ends the writing. The file stays; the hidden one goes."""
        self._remove_hidden()
        for descriptor in {self._shown, self._hidden} - {None}:
            os.close(descriptor)  # type: ignore[arg-type]

    def _copy(self, events: bytes) -> int:
        """Replaces the hidden file by a copy of the other with ``events`` behind it."""
        if self._hidden is not None:
            os.close(self._hidden)
            self._hidden = None
        self._remove_hidden()
        copy = self._made()
        try:
            at = 0
            while at < self._end:
                sent = os.sendfile(copy, self._shown, at, self._end - at)
                if not sent:
                    raise OSError(errno.EIO, "somebody has made it shorter", str(self.path))
                at += sent
            _write(copy, events + _END, self._end)
        except OSError:
            os.close(copy)
            raise
        return copy

    def _made(self) -> int:
        self._remove_hidden()  # that of an earlier writer, which was killed
        return os.open(self._next, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def _remove_hidden(self) -> None:
        with suppress(OSError):
            self._next.unlink()


def _write(descriptor: int, data: bytes, at: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, at)
        left, at = left[written:], at + written


def _lease(descriptor: int) -> bool:
    """Takes a lease, and says whether it was granted."""
    try:
        # Else the kernel would send SIGIO to the process when somebody opens the file, and that ends it.
        owner = struct.pack("ii", _F_OWNER_TID, threading.get_native_id())
        fcntl.fcntl(descriptor, _F_SETOWN_EX, owner)
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    return True


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges the names of two files. False where the file system cannot, or one of them is gone."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except AttributeError:  # a C library without it
        return False
    return bool(renameat2(_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE) == 0)
