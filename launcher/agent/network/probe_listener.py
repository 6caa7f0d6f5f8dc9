"""The listening end of a connect test: a thread that listens on a host's candidate addresses for a short time.

Every connection is a generator that yields what to send and how many bytes it wants next, so a stranger costs no more
memory than one HELLO. Both ends prove that they have the token that hvdrun made for this test
(`hvdlite.net.handshake`). The count in the WELCOME is the number of the listener's host, by which the dialler knows
which host it has reached: two hosts may have one address, or a router may redirect it. Then the listener echoes
`ROUNDS` pings and a wide one, which fills packets of any usual size. It discards what follows up to the end of the
stream, and answers with its length.
"""

from __future__ import annotations

import errno
import selectors
import socket
import struct
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import suppress
from typing import Final

from hvdlite.net.handshake import Callee, Refused
from hvdlite.net.listener import Listener
from hvdlite.net.listening import listen_at
from hvdlite.scope import Scope

ROUNDS: Final = 9
PING_BYTES: Final = 16
WIDE_BYTES: Final = 10_000  # more than a packet of 9,000 bytes holds
TOTAL: Final = struct.Struct("!Q")
EVERYTHING: Final = 0  # wanted: all up to the end of the stream

_STRANGER_S: Final = 1.0  # for each message of a greeting: half of what a dialler waits behind a crowd of strangers
_AFTER_GREETING: Final = (PING_BYTES, WIDE_BYTES, EVERYTHING)  # wanted of a caller that has the token
_TICK_S: Final = 0.2
_MAX_CONNECTIONS: Final = 512
_BULK_BYTES: Final = 1 << 20
_SEND_BUFFER_BYTES: Final = 128 << 10  # holds whatever a conversation sends at once

Conversation = Generator[tuple[bytes, int], bytes, None]


class ProbeListener:
    """Listens on each of ``addresses``, as host number ``host``, until `close` or for ``lifetime_s``.

    ``ports`` are those to choose from on each address, None for any. ``port_by_address`` says where it listens,
    ``problems`` why it does not listen on the other addresses.
    """

    def __init__(
        self, token: bytes, host: int, addresses: Iterable[str], ports: range | None, lifetime_s: float
    ) -> None:
        self._token, self._host = token, host
        self._lifetime = Scope.of(lifetime_s)
        self._selector = selectors.DefaultSelector()
        self._connections: dict[socket.socket, _Connection] = {}
        self._listeners: list[Listener] = []
        self.port_by_address: dict[str, int] = {}
        self.problems: dict[str, str] = {}
        for address in addresses:
            try:
                listener = _listen(address, ports)
            except OSError as error:
                self.problems[address] = error.strerror or str(error)
                continue
            self._listeners.append(listener)
            self.port_by_address[address] = int(listener.name()[1])
        self._stop, self._stopped = socket.socketpair()
        self._selector.register(self._stopped, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="hvdrun-probe", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening and closes what is open."""
        self._stop.close()
        self._thread.join()

    def _run(self) -> None:
        self._resume_accepting()
        while not self._lifetime.is_over:
            ready = self._selector.select(min(self._lifetime.left_s, _TICK_S))
            keys = [key.fileobj for key, _ in ready]
            if self._stopped in keys:
                break
            for key in keys:
                if isinstance(key, socket.socket | Listener):
                    self._serve(key)
            self._drop_the_silent()
        for held in (*self._connections, self._stopped):
            held.close()
        for listener in self._listeners:
            listener.close()
        self._selector.close()

    def _serve(self, ready: socket.socket | Listener) -> None:
        if isinstance(ready, Listener):
            self._admit(ready)
        elif ready in self._connections and not self._connections[ready].receive():
            self._drop(ready)

    def _admit(self, listener: Listener) -> None:
        if (accepted := listener.accept()) is None:
            return
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._connections[accepted] = _Connection(accepted, _converse(self._token, self._host))
        self._selector.register(accepted, selectors.EVENT_READ)
        if len(self._connections) == _MAX_CONNECTIONS:
            self._pause_accepting()

    def _drop_the_silent(self) -> None:
        now = time.monotonic()
        for held in [held for held, connection in self._connections.items() if connection.is_overdue(now)]:
            self._drop(held)

    def _drop(self, held: socket.socket) -> None:
        self._selector.unregister(held)
        held.close()
        del self._connections[held]
        if len(self._connections) == _MAX_CONNECTIONS - 1:
            self._resume_accepting()

    def _resume_accepting(self) -> None:
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ)

    def _pause_accepting(self) -> None:
        """Leaves further callers in the kernel's queue while the limit is reached."""
        for listener in self._listeners:
            self._selector.unregister(listener)


class _Connection:
    """One caller: the conversation with it, and the part of its next message that has arrived."""

    def __init__(self, caller: socket.socket, conversation: Conversation) -> None:
        self._socket, self._conversation = caller, conversation
        self._overdue_at = time.monotonic() + _STRANGER_S
        self._buffer = bytearray()
        self._swallowed = 0
        _, self._wanted = next(conversation)

    def is_overdue(self, now: float) -> bool:
        return self._wanted not in _AFTER_GREETING and now > self._overdue_at

    def receive(self) -> bool:
        """Handles what has arrived. False when the connection is over."""
        try:
            if self._wanted == EVERYTHING:
                return self._swallow()
            data = self._socket.recv(self._wanted - len(self._buffer))
            if not data:
                return False
            self._buffer += data
            if len(self._buffer) == self._wanted:
                answer, self._wanted = self._conversation.send(bytes(self._buffer))
                self._buffer.clear()
                self._overdue_at = time.monotonic() + _STRANGER_S
                self._socket.sendall(answer)
        except BlockingIOError:
            return True
        except (OSError, StopIteration, Refused):
            return False
        return True

    def _swallow(self) -> bool:
        data = self._socket.recv(_BULK_BYTES)
        self._swallowed += len(data)
        if not data:
            with suppress(OSError):
                self._socket.sendall(TOTAL.pack(self._swallowed))
        return bool(data)


def _converse(token: bytes, host: int) -> Conversation:
    callee, echo = Callee(token, 0, 0, 0), b""
    while callee.awaits:
        message = yield echo, callee.awaits
        echo = callee.take(message)
    echo = callee.welcome(host)
    for length in (*[PING_BYTES] * ROUNDS, WIDE_BYTES):
        echo = yield echo, length
    yield echo, EVERYTHING


def _listen(address: str, ports: range | None) -> Listener:
    """Listens on the first free port. Raises OSError if there is none."""
    for port in ports or (0,):
        try:
            return listen_at(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    which = f"ports {ports[0]}-{ports[-1]}" if ports else "its ports"
    raise OSError(errno.EADDRINUSE, f"{which} are all in use")
