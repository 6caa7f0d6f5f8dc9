"""Carries connections through the stream between hvdrun and an agent.

Workers of another host meet over hvdrun's sockets, which are abstract Unix sockets of hvdrun's host: no port is opened
for them anywhere. On the other host the agent listens on an abstract Unix socket, lets in only its own user, and
carries the bytes of each connection as a numbered *channel*; hvdrun connects each channel to the socket of the
requested *service*. The bytes are those of `hvdlite.net.calls`.

Both ends hold their channels in a `Tunnel`. Bytes that a socket does not accept are kept up to a limit, beyond which
its channel is closed; sockets are read only while the stream has room (`hold`).
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, NamedTuple

from hvdlite.net.listener import UNIX, Listener, peer_of

from ..stream.loop import Loop
from ..stream.messages import Close, Data, Open
from ..stream.sink import Sink

MAX_CHANNELS: Final = 4096
_READ_BYTES: Final = 64 << 10


class _Channel(NamedTuple):
    sock: socket.socket
    sink: Sink


class Tunnel:
    """One end. ``send`` sends messages to the other; a channel that either end closes is closed at both."""

    def __init__(self, loop: Loop, send: Callable[[Open | Data | Close], None]) -> None:
        self._loop, self._send = loop, send
        self._channels: dict[int, _Channel] = {}
        self._listeners: list[Listener] = []
        self._numbers = itertools.count()
        self._is_held = False

    def listen(self, name: str, service: str) -> None:
        """Accepts connections to the abstract socket ``name`` for ``service``. Raises OSError if the name is taken."""
        listener = Listener.within_host(name)
        self._listeners.append(listener)
        self._loop.watch(listener.fileno(), partial(self._accept, listener, service))

    def open(self, channel: int, name: str | None) -> None:
        """Connects ``channel`` to the abstract socket ``name``; without one, or if that fails, closes it."""
        is_refused = channel in self._channels or len(self._channels) >= MAX_CHANNELS
        connection = None if name is None or is_refused else _connect(name)
        if connection is None:
            self._send(Close(channel))
        else:
            self._add(channel, connection)

    def deliver(self, channel: int, data: bytes) -> None:
        """Writes ``data`` to ``channel``, or drops it if the channel is closed already."""
        if found := self._channels.get(channel):
            found.sink.write(data)

    def close(self, channel: int) -> None:
        """The other end has closed ``channel``."""
        if found := self._channels.pop(channel, None):
            self._loop.unwatch(found.sock.fileno())
            found.sink.close()
            found.sock.close()

    def hold(self, is_held: bool) -> None:
        """Pauses or resumes reading from the channels."""
        self._is_held = is_held
        for channel, found in self._channels.items():
            if is_held:
                self._loop.unwatch(found.sock.fileno())
            else:
                self._loop.watch(found.sock.fileno(), partial(self._read, channel))

    def shut(self) -> None:
        """Closes everything."""
        for listener in self._listeners:
            self._loop.unwatch(listener.fileno())
            listener.close()
        self._listeners.clear()
        for channel in tuple(self._channels):
            self.close(channel)

    def _accept(self, listener: Listener, service: str) -> None:
        if (connection := listener.accept()) is None:
            return
        channel = next(self._numbers)
        if len(self._channels) < MAX_CHANNELS:
            self._add(channel, connection)
            self._send(Open(channel, service))
        else:
            connection.close()

    def _add(self, channel: int, connection: socket.socket) -> None:
        check = partial(self._check, channel)
        sink = Sink(connection.fileno(), f"channel {channel}", loop=self._loop, changed=check)
        self._channels[channel] = _Channel(connection, sink)
        if not self._is_held:
            self._loop.watch(connection.fileno(), partial(self._read, channel))

    def _read(self, channel: int) -> None:
        try:
            data = self._channels[channel].sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._send(Data(channel, data))
        else:
            self._break(channel)

    def _check(self, channel: int) -> None:
        if self._channels[channel].sink.problem:
            self._break(channel)

    def _break(self, channel: int) -> None:
        self.close(channel)
        self._send(Close(channel))


def _connect(name: str) -> socket.socket | None:
    """A non-blocking connection to the abstract socket ``name``; None if no process of this user answers there."""
    with ExitStack() as undo, suppress(OSError):
        connection = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
        connection.connect(f"\0{name}")
        if peer_of(connection).is_own:
            undo.pop_all()
            return connection
    return None


def tunnelled(environment: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The variables that begin with ``prefix`` and hold the address of an abstract Unix socket, and its name."""
    found = {name: value for name, value in environment.items() if name.startswith(prefix)}
    return {name: value.removeprefix(UNIX) for name, value in found.items() if value.startswith(UNIX)}
