"""A JSON array in a file that is complete whenever anybody opens it, and still when its writer was killed.

An append is not atomic. So there are two files: one has the name, the other is hidden beside it. New events are written
to the hidden one, after those that it lacks, and then the two files exchange their names, which is atomic. Each byte is
written twice, whatever the length of the file.

A reader may still have the file open that is hidden now. The kernel grants a lease (``F_SETLEASE``) only on a file that
no one else has open, and delays everyone who opens it. Without a lease the file is copied, and the copy is written. The
caller spaces its calls by their cost, so that copies also take a fixed share of the time.

An exchange would separate a file from its other hard links. So a file that has some is written in place.
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
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

from hvdlite.host.descriptors import followed, opened

MOST_BYTES: Final = 1 << 20
"""Events of one call, from a rank to hvdrun, which writes the file."""

_BEGIN: Final = b"[\n"
_END: Final = b"\n]\n"
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_F_SETOWN_EX: Final = 15
_F_OWNER_TID: Final = 0
_PERMISSIONS: Final = 0o777
_LONGEST_NAME: Final = 255  # bytes
_IN_USE: Final = "another job writes its timeline there; give each job a file of its own"


class JsonArrayFile:
    """The file at ``path``, empty at first. Raises OSError, as `append` does.

    An existing file keeps its mode, and its owner where that is permitted. A file of another writer is refused.

    For one thread, which must block SIGURG: the kernel sends it when someone opens a leased file.
    """

    def __init__(self, path: str | Path) -> None:
        self._end = len(_BEGIN)  # of the events in the file that has the name
        self._lacking = b""  # what the hidden file does not have of them
        self._hidden: int | None = None
        try:
            self.path = followed(path)
            self._shown = self._locked()
            self._next = self.path.with_name(_hidden_name(self.path.name))
            try:
                self._begin()
            except OSError:
                self.close()
                raise
        except BlockingIOError:
            raise OSError(errno.EBUSY, _IN_USE, str(path)) from None
        except OSError as error:  # perhaps of the hidden file, whose name the user does not know
            raise OSError(error.errno, error.strerror, str(path)) from None

    def append(self, events: bytes) -> None:
        """Appends ``events``, which are separated by commas. After an OSError the file is unchanged."""
        if self._end > len(_BEGIN):
            events = b",\n" + events
        if _has_other_names(self._shown):
            self._append_in_place(events)
        else:
            self._append_beside(events)
        self._end += len(events)

    def close(self) -> None:
        """Ends the writing. The file stays; the hidden one goes."""
        self._drop_hidden()
        with suppress(OSError):  # a child that was forked has the descriptor too, and would keep the lock
            fcntl.flock(self._shown, fcntl.LOCK_UN)
        os.close(self._shown)

    def _locked(self) -> int:
        """Opens or makes the file, and locks it. Both files of a writer are locked."""
        while True:
            # Not blocking: it may be a FIFO, or hidden and leased by now.
            file = opened(self.path, os.O_RDWR | os.O_NONBLOCK)
            try:
                # A remaining link is one of /proc, beside which no other file can be made.
                if not stat.S_ISREG(os.fstat(file).st_mode) or self.path.is_symlink():
                    raise OSError(errno.EINVAL, "it is no regular file")
                _lock(file)
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file), self.path.lstat()):
                        return file
            except OSError:
                os.close(file)
                raise
            os.close(file)  # its writer has exchanged the names meanwhile

    def _begin(self) -> None:
        """Empties the file, which is complete at every instant."""
        if _has_other_names(self._shown) or not os.fstat(self._shown).st_size:
            _write(self._shown, _BEGIN + _END, 0)
            os.ftruncate(self._shown, len(_BEGIN + _END))
        else:
            empty = self._made()
            try:
                _write(empty, _BEGIN + _END, 0)
                os.rename(self._next, self.path)
            except OSError:
                os.close(empty)
                raise
            os.close(self._shown)
            self._shown = empty

    def _append_in_place(self, events: bytes) -> None:
        """For a file with other hard links. A reader that has it open already may see half a write."""

        self._drop_hidden()
        is_leased = _lease(self._shown)
        try:
            _write(self._shown, events + _END, self._end)
        except OSError:
            with suppress(OSError):
                _write(self._shown, _END, self._end)
                os.ftruncate(self._shown, self._end + len(_END))
            raise
        finally:
            if is_leased:
                fcntl.fcntl(self._shown, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def _append_beside(self, events: bytes) -> None:
        hidden = self._hidden
        if hidden is not None and _lease(hidden):
            try:
                _write(hidden, self._lacking + events + _END, self._end - len(self._lacking))
                _make_alike(hidden, os.fstat(self._shown))
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
        self._lacking = events

    def _copy(self, events: bytes) -> int:
        """Replaces the hidden file by a copy of the shown one with ``events`` appended."""
        self._drop_hidden()
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
        """Returns a new hidden file, locked, with the mode and the owner of the other."""
        self._remove_hidden()  # of an earlier writer, which was killed
        like = os.fstat(self._shown)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            made = os.open(self._next, flags, stat.S_IMODE(like.st_mode) & _PERMISSIONS)
        except FileExistsError:
            raise OSError(errno.EEXIST, f"{self._next.name} beside it is in the way; remove that") from None
        try:
            _make_alike(made, like)
            _lock(made)
        except OSError:
            os.close(made)
            raise
        return made

    def _drop_hidden(self) -> None:
        self._remove_hidden()
        if self._hidden is not None:
            os.close(self._hidden)
            self._hidden = None

    def _remove_hidden(self) -> None:
        with suppress(OSError):
            self._next.unlink()


def _hidden_name(name: str) -> str:
    hidden = f".{name}.next"
    if len(os.fsencode(hidden)) > _LONGEST_NAME:
        hidden = f".{zlib.crc32(os.fsencode(name)):08x}.next"
    return hidden


def _has_other_names(file: int) -> bool:
    return os.fstat(file).st_nlink > 1


def _make_alike(file: int, like: os.stat_result) -> None:
    """Gives ``file`` the owner and the mode of the other, as far as this user may."""
    own = os.fstat(file)
    if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
        for owner in (like.st_uid, -1):
            with suppress(PermissionError):
                os.fchown(file, owner, like.st_gid)
                break
    mode = stat.S_IMODE(like.st_mode) & _PERMISSIONS
    if stat.S_IMODE(own.st_mode) != mode:
        os.fchmod(file, mode)


def _lock(file: int) -> None:
    """Raises BlockingIOError if another writer has ``file``. On file systems without locks it does nothing."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass


def _write(descriptor: int, data: bytes, at: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, at)
        left, at = left[written:], at + written


def _lease(descriptor: int) -> bool:
    """Takes a lease. Returns whether it was granted."""
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
