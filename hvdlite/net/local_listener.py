"""A listener for processes of the same host and user that know its token.

The listener is an abstract Unix socket, by default with a random name, so it leaves no file. It admits processes of the
same user whose first packet begins with the token; the rest of the packet is a greeting. Packets keep their boundaries
(``SOCK_SEQPACKET``), so there is nothing to parse. Strangers delay no one.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
from collections.abc import Generator
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from hvdlite.errors import HorovodInternalError
from hvdlite.net.listener import Listener, call_within_host
from hvdlite.scope import Scope

_HELLO_LIMIT_BYTES: Final = 4096


class LocalListener:
    """Listens at ``address`` until it is closed, for peers that know ``token``. Raises OSError if it is taken."""

    def __init__(self, token: bytes, address: str | None = None) -> None:
        self.address = address or f"hvdlite-listener-{secrets.token_hex(16)}"
        self._token = token
        self._listener = Listener.within_host(self.address, socket.SOCK_SEQPACKET)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops listening. Peers that were admitted stay connected."""
        self._listener.close()

    def admit(self, scope: Scope) -> Generator[tuple[socket.socket, bytes], None, None]:
        """Yields a socket for each admitted peer, with its greeting; the caller closes the sockets.

        Raises TimeoutError at the end of ``scope``.
        """
        with selectors.DefaultSelector() as ready, ExitStack() as peers:
            ready.register(self._listener, selectors.EVENT_READ)
            while True:
                events = ready.select(scope.pause_s())
                if not events and scope.is_over:
                    raise TimeoutError
                for key, _ in events:
                    if key.fileobj is self._listener:
                        if (peer := self._listener.accept()) is not None:
                            ready.register(peers.enter_context(peer), selectors.EVENT_READ)
                        continue
                    assert isinstance(key.fileobj, socket.socket)
                    ready.unregister(key.fileobj)
                    greeting = self._check(key.fileobj)
                    if greeting is None:
                        key.fileobj.close()
                    else:
                        # A new object for the caller: the stack closes its own when the iteration ends.
                        yield socket.socket(fileno=key.fileobj.detach()), greeting

    def _check(self, peer: socket.socket) -> bytes | None:
        try:
            packet = peer.recv(_HELLO_LIMIT_BYTES)
        except OSError:
            return None
        length = len(self._token)
        return packet[length:] if hmac.compare_digest(packet[:length], self._token) else None


def say_hello(address: str, token: bytes, greeting: bytes, scope: Scope) -> socket.socket:
    """Connects to the listener at ``address``. The socket blocks until the end of ``scope``.

    Raises OSError if there is no listener, and HorovodInternalError if it is another user's.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if not call_within_host(sock, address, scope).is_own:
            raise HorovodInternalError(f"{address} belongs to another user; start the job anew")
        sock.send(token + greeting)
    except BaseException:
        sock.close()
        raise
    return sock
