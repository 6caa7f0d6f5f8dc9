"""Hands one piece of anonymous memory to the other ranks of a host.

The memory is a *memfd*: it has no name in any file system, so it needs no space in ``/dev/shm`` and nothing is left
when all ranks are gone, however they died. Its pages are reserved at once, so that a lack of memory shows here and not
as a SIGBUS in the middle of a collective, and its size is sealed.

The rank that made it listens on an abstract Unix socket with a random name. A peer connects and presents the group's
token; the offer checks the peer's user id, as the kernel reports it, and the token, and passes the descriptor
(``SCM_RIGHTS``). Message boundaries are kept (``SOCK_SEQPACKET``), so a token is one message and there is nothing to
parse. A stranger is dropped and delays nobody.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import secrets
import selectors
import socket
import struct
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Final

from hvdlite.errors import HorovodInternalError

_TOKEN_LIMIT: Final = 1024
_SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred: pid, uid, gid


def create(nbytes: int) -> int:
    """A descriptor of ``nbytes`` of zeroed, reserved, sealed memory. Raises HorovodInternalError if there is none."""
    fd = os.memfd_create("hvdlite", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(fd)
        raise HorovodInternalError(
            f"cannot reserve {nbytes} bytes of shared memory: {error.strerror}. "
            "Free memory on this host, or lower HVDLITE_SHM_CHUNK or HVDLITE_SHM_SLOTS."
        ) from None
    return fd


class SegmentOffer:
    """Offers ``fd`` (borrowed, never closed here) at ``address`` to peers that present ``token``."""

    def __init__(self, fd: int, token: bytes) -> None:
        self.address = f"hvdlite-segment-{secrets.token_hex(16)}"
        self._fd = fd
        self._token = token
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("\0" + self.address)
        self._listener.listen(socket.SOMAXCONN)
        self._listener.setblocking(False)

    def __enter__(self) -> SegmentOffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops listening."""
        self._listener.close()

    def serve(self, count: int, deadline: float) -> None:
        """Hands the descriptor to ``count`` peers.

        Raises HorovodInternalError if they have not all come at ``deadline`` (``time.monotonic()`` seconds).
        """
        served = 0
        with selectors.DefaultSelector() as ready, ExitStack() as guests:
            ready.register(self._listener, selectors.EVENT_READ)
            while served < count:
                events = ready.select(max(0.0, deadline - time.monotonic()))
                if not events:
                    raise HorovodInternalError(
                        f"{count - served} of {count} ranks of this host did not fetch the shared segment in time; "
                        "see their output, or raise HVDLITE_START_TIMEOUT."
                    )
                for key, _ in events:
                    if key.fileobj is self._listener:
                        if (guest := self._accept()) is not None:
                            ready.register(guests.enter_context(guest), selectors.EVENT_READ)
                        continue
                    assert isinstance(key.fileobj, socket.socket)
                    ready.unregister(key.fileobj)
                    with key.fileobj:
                        served += self._answer(key.fileobj)

    def _accept(self) -> socket.socket | None:
        try:
            guest, _ = self._listener.accept()
        except BlockingIOError:  # the guest left before it was let in
            return None
        if _peer_uid(guest) != os.geteuid():
            guest.close()
            return None
        guest.setblocking(False)
        return guest

    def _answer(self, guest: socket.socket) -> bool:
        """Passes the descriptor if the guest knows the token; False if not, or if it is already gone."""
        try:
            if not hmac.compare_digest(guest.recv(_TOKEN_LIMIT), self._token):
                return False
            socket.send_fds(guest, [b"\0"], [self._fd])
        except OSError:
            return False
        return True


def fetch(address: str, token: bytes, deadline: float) -> int:
    """The descriptor offered at ``address``; the caller closes it.

    Raises HorovodInternalError if the offer is gone, is another user's, refuses the token, or does not answer before
    ``deadline`` (``time.monotonic()`` seconds).
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            link.connect("\0" + address)
            if _peer_uid(link) != os.geteuid():
                raise HorovodInternalError(
                    f"the shared segment {address} is offered by another user; start the job anew."
                )
            link.send(token)
            _, fds, _, _ = socket.recv_fds(link, 1, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise HorovodInternalError(
                f"cannot fetch the shared segment {address}: {error}. The rank that offers it has ended or is stopped; "
                "see the output of local rank 0."
            ) from None
    if not fds:
        raise HorovodInternalError(f"the shared segment {address} was refused: this rank belongs to another job.")
    return fds[0]


def _peer_uid(link: socket.socket) -> int:
    _, uid, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)
