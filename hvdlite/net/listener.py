"""Listening sockets that strangers cannot exhaust. Agents import this module, so it needs the standard library only.

Within a host the kernel identifies callers: another user's connection is closed at once. Over TCP it cannot, so the
kernel delays a caller until it has sent something (`hvdlite.net.lobby` does the rest).

When no descriptor is left, the listener would stay readable and its thread would spin. So one descriptor is kept in
reserve, with which a caller is accepted and turned away.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from hvdlite.scope import Scope

UNIX: Final = "unix://@"
"""The prefix of addresses of abstract Unix sockets."""

_BURST: Final = 64  # callers who are turned away in one go
_DEFER_S: Final = 1
_SHORTEST_S: Final = 0.001  # a time-out of 0 would make a socket non-blocking
_REST_S: Final = 0.01  # when there is no descriptor in reserve either
_SHORT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_ALL_USERS: Final = ("0", "0", str(2**32 - 1))  # what a system maps that has no user namespaces
_TIMEVAL: Final = struct.Struct("ll")
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred of Linux: only the process id has a sign


class Peer(NamedTuple):
    """The process and user at the other end of a Unix socket."""

    pid: int
    uid: int

    @property
    def is_own(self) -> bool:
        """True if it belongs to this process's user. Valid only if `tells_users_apart`."""
        return self.uid == os.geteuid()


def peer_of(sock: socket.socket) -> Peer:
    """The peer as it was when it connected or listened, in the numbers of this process's namespaces."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


def tells_users_apart() -> bool:
    """True if the kernel distinguishes users for this process.

    In a user namespace all unmapped users have the same number, so a process of such a user needs a key instead.
    """
    try:
        nobody = int(Path("/proc/sys/kernel/overflowuid").read_text())
        maps = [tuple(line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except OSError:
        return True
    return os.geteuid() != nobody or maps == [_ALL_USERS]


def call_within_host(sock: socket.socket, name: str, scope: Scope) -> Peer:
    """Connects ``sock``, which then has a time-out at the end of ``scope``, to the abstract Unix socket ``name``.

    Waits while the queue there is full, perhaps of strangers. Raises OSError.
    """
    left_s = max(_SHORTEST_S, scope.left_s)
    sock.setblocking(True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(left_s), int(left_s % 1 * 1e6)))
    sock.connect("\0" + name)
    limit(sock, scope)
    return peer_of(sock)


def limit(sock: socket.socket, scope: Scope) -> None:
    """Lets the next operations on ``sock`` block until the end of ``scope``, each."""
    sock.settimeout(max(_SHORTEST_S, scope.left_s))


class Listener:
    """Takes over the socket ``bound`` and listens. `fileno` is readable while somebody waits."""

    def __init__(self, bound: socket.socket) -> None:
        self._socket = bound
        self._is_within_host = bound.family == socket.AF_UNIX
        self._reserve = -1
        try:
            if not self._is_within_host:
                bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_S)
            bound.listen(socket.SOMAXCONN)
            bound.setblocking(False)
            self._reserve = os.eventfd(0, os.EFD_CLOEXEC)
        except BaseException:
            bound.close()
            raise

    @classmethod
    def within_host(cls, name: str, kind: int = socket.SOCK_STREAM) -> Listener:
        """Listens on the abstract Unix socket ``name``. Raises OSError if it is taken."""
        bound = socket.socket(socket.AF_UNIX, kind)
        try:
            bound.bind(f"\0{name}")
        except BaseException:
            bound.close()
            raise
        return cls(bound)

    @property
    def is_within_host(self) -> bool:
        """True if the kernel identifies callers."""
        return self._is_within_host

    def fileno(self) -> int:
        return self._socket.fileno()

    def name(self) -> tuple[str, int] | str:
        """The IP address and the port, or the name of the abstract Unix socket."""
        where = self._socket.getsockname()
        return str(where[1:].decode()) if self._is_within_host else (where[0], where[1])

    def accept(self) -> socket.socket | None:
        """The next admitted caller's connection, non-blocking; None if there is none."""
        for _ in range(_BURST):
            try:
                sock, _ = self._socket.accept()
            except BlockingIOError:
                return None
            except OSError as error:  # the caller has gone, or there is no descriptor for it, or no memory
                if error.errno in _SHORT_OF_DESCRIPTORS:
                    self._turn_away()
                continue
            if self._is_within_host and not peer_of(sock).is_own:
                sock.close()
                continue
            sock.setblocking(False)
            return sock
        return None

    def _turn_away(self) -> None:
        if self._reserve < 0:  # another thread was faster, and took it
            time.sleep(_REST_S)
        else:
            os.close(self._reserve)
            with suppress(OSError):
                self._socket.accept()[0].close()
        with suppress(OSError):
            self._reserve = -1
            self._reserve = os.eventfd(0, os.EFD_CLOEXEC)

    def hand_over(self) -> int:
        """Hands the listener's descriptor to ZeroMQ, which accepts on it and closes it. This object is closed then."""
        os.close(self._reserve)
        self._reserve = -1
        return self._socket.detach()

    def close(self) -> None:
        """Stops listening, even if a forked child has a copy of the descriptor."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1
