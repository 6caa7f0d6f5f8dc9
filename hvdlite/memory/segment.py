"""Hands one piece of anonymous memory to the other ranks of a host.

The memory is a *memfd*: it has no name in any file system, so it needs no space in ``/dev/shm`` and nothing is left
when all ranks are gone, however they died. Its pages are reserved at once (a full machine is an error here and not a
SIGBUS later), unless it is made sparse, and its size is sealed. The rank that made it passes the descriptor
(``SCM_RIGHTS``) to peers that connect to a `LocalListener`.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable
from typing import Final

from hvdlite.errors import HorovodInternalError
from hvdlite.net.local_listener import LocalListener, say_hello
from hvdlite.net.poll import wait_readable
from hvdlite.scope import Scope

_SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def create(nbytes: int) -> int:
    """A descriptor of ``nbytes`` of zeroed, reserved, sealed memory. Raises HorovodInternalError if there is none."""
    try:
        return _sealed(lambda fd: os.posix_fallocate(fd, 0, nbytes))
    except OSError as error:
        raise HorovodInternalError(
            f"cannot reserve {nbytes} bytes of shared memory: {error.strerror}. "
            "Free memory on this host, or lower HVDLITE_SHM_CHUNK or HVDLITE_SHM_SLOTS."
        ) from None


def create_sparse(nbytes: int) -> int:
    """Like `create`, but without pages, which are reserved when they are used. Raises OSError if it is too much."""
    return _sealed(lambda fd: os.ftruncate(fd, nbytes))


def _sealed(resize: Callable[[int], None]) -> int:
    fd = os.memfd_create("hvdlite", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        resize(fd)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


class SegmentOffer(LocalListener):
    """Listens where ``fd`` (borrowed, never closed here) is handed to peers that present ``token``."""

    def __init__(self, fd: int, token: bytes) -> None:
        super().__init__(token)
        self._fd = fd

    def serve(self, count: int, scope: Scope) -> None:
        """Hands the descriptor to ``count`` peers.

        Raises HorovodInternalError if they have not all come in time.
        """
        served = 0
        peers = self.admit(scope)
        while served < count:
            try:
                peer, _ = next(peers)
            except TimeoutError:
                raise HorovodInternalError(
                    f"{count - served} of {count} ranks of this host did not fetch the shared segment in time; "
                    "see their output, or raise HVDLITE_START_TIMEOUT."
                ) from None
            with peer:
                served += self._answer(peer)
        peers.close()

    def _answer(self, peer: socket.socket) -> bool:
        """Passes the descriptor; False if the peer is already gone."""
        try:
            socket.send_fds(peer, [b"\0"], [self._fd])
        except OSError:
            return False
        return True


def fetch(address: str, token: bytes, scope: Scope) -> int:
    """The descriptor offered at ``address``; the caller closes it.

    Raises HorovodInternalError if the offer is gone, is another user's, refuses the token, or does not answer in time.
    """
    try:
        with say_hello(address, token, b"", scope) as sock:
            wait_readable(sock, scope)
            _, fds, _, _ = socket.recv_fds(sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
    except OSError as error:
        raise HorovodInternalError(
            f"cannot fetch the shared segment {address}: {error}. The rank that offers it has ended or is stopped; "
            "see the output of local rank 0."
        ) from None
    if not fds:
        raise HorovodInternalError(f"the shared segment {address} was refused: this rank belongs to another job.")
    return fds[0]
