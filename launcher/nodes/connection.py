"""Node 0's end of the connection to another node: the way to its agent, and the records between the two hvdruns."""

from __future__ import annotations

import select
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from hvdlite.errors import CannotStart
from hvdlite.net.poll import comes
from hvdlite.scope import Scope

from ..agents.ways import Receiver
from ..decisions.endings import NODE_BROKE, NODE_LEFT
from ..stream.fields import MOST_CHARACTERS, parse_fields, read
from ..stream.frames import FrameError
from ..stream.loop import Loop
from ..stream.messages import Signalled
from ..stream.outbox import Outbox
from .records import Channel, Introduction, Reason, Record

_LAST_WRITE_S: Final = 0.5
_FAREWELL_S: Final = 5.0  # for a node to end, whose agent is to end
_EARLY_BYTES: Final = 1 << 20  # what an agent may send before it is asked anything
_ABORTS: Final = struct.pack(
    "ii", 1, 0
)  # as SO_LINGER: what was not sent is dropped, and the node sees the end at once


class NodeConnection:
    """A node that has introduced itself; a `Way` to the agent that it runs.

    ``host`` is its name in this job, and ``address`` where it called from. Until it is attached, `take` is to be called
    when ``sock`` is readable.
    """

    is_remote = True
    is_scheduled = False

    def __init__(self, channel: Channel, introduction: Introduction, address: str) -> None:
        self.introduction, self.address, self.host = introduction, address, ""
        self.has_ended = False  # the connection
        self._channel = channel
        self._reason = ""  # why the stream of the agent has ended
        self._early = bytearray()
        self._receive: Callable[[bytes], None] = self._keep
        self._signalled: Callable[[int], None] = self._end_by_signal
        self._stream_has_ended = self._is_hung_up = self._is_concluded = self._is_given_up = False
        self._loop: Loop | None = None
        self._outbox: Outbox | None = None

    def __str__(self) -> str:
        return f"a connection from {self.address}, node {self.introduction.node}"

    @property
    def sock(self) -> socket.socket:
        return self._channel.sock

    @property
    def waiting_bytes(self) -> int:
        return self._outbox.waiting_bytes if self._outbox else 0

    def take(self) -> None:
        """Reads what has come."""
        try:
            for kind, payload in self._channel.receive():
                self._obey(kind, payload)
        except ConnectionError as error:
            self._end(f"{NODE_BROKE}: {error}" if str(error) else NODE_LEFT)
        except FrameError as error:
            self._end(f"hvdrun there sent an invalid message: {error}")

    # ---- as a way to the agent

    def attach(self, loop: Loop, receiver: Receiver) -> None:
        receive = receiver.receive
        self._loop, self._receive, self._signalled = loop, receive, receiver.signalled
        self._outbox = Outbox(loop, self.sock.fileno(), f"node {self.introduction.node}", receiver.hold)
        if self._early:
            receive(bytes(self._early))
        if self._stream_has_ended:
            receive(b"")
        if not self.has_ended:
            loop.watch(self.sock.fileno(), self.take)

    def send(self, data: bytes) -> None:
        if not self._is_hung_up:
            for record in self._channel.seal_stream(data):
                self._write(record)

    def ignore(self) -> None:
        self._receive = _ignore

    def conclude(self, code: int, text: str = "") -> None:
        """Sends the node, once, how the job ended; ``text`` is the reason if it was not started."""
        if not self._is_concluded:
            self._is_concluded = True
            self._write(self._channel.seal(Record.OVER, code=code, text=text[:MOST_CHARACTERS]))

    def hang_up(self) -> None:
        if not self._is_hung_up:
            self._is_hung_up = True
            self._write(self._channel.seal(Record.END, reason=""))
            if self._outbox:
                self._outbox.drain(_LAST_WRITE_S)

    def wait(self, timeout_s: float) -> bool:
        return True

    def destroy(self) -> None:
        self._is_given_up = True
        self.hang_up()

    def kill(self) -> None:
        """Nothing runs here."""

    def explain(self) -> str:
        return self._reason or "it was asked to end"

    def close(self) -> None:
        """Leaves the loop; the connection stays until `part`."""
        if self._loop:
            self._loop.unwatch(self.sock.fileno())
            self._loop = None
        if self._outbox:
            self._outbox.close()
            self._outbox = None

    # ---- the connection

    def welcome(self, host: str) -> None:
        """Lets the node in; ``host`` is the name of node 0."""
        self._write(self._channel.seal(Record.WELCOME, host=host))

    def part(self, scope: Scope) -> None:
        """Says that there will be nothing more, waits until the node has ended, unless it is lost, and hangs up.

        A node that has not ended by then is cut off: data that it does not read would hold the end back.
        """
        self.close()
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
            while not (self.has_ended or self._is_given_up) and comes(self.sock, select.POLLIN, scope.left_s):
                self.has_ended = not self.sock.recv(1 << 16)
        if not self.has_ended:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORTS)
        self.sock.close()

    def _obey(self, kind: Record, payload: bytes) -> None:
        if kind is Record.STREAM:
            if not self._stream_has_ended:
                self._receive(payload)
        elif kind is Record.END:
            self._end_stream(read(Reason, parse_fields(payload)).reason)
        elif kind is Record.SIGNAL:
            self._signalled(read(Signalled, parse_fields(payload)).signum)
        elif kind is Record.PING:
            self._write(self._channel.seal(Record.PING))
        else:
            raise FrameError(f"a record of kind {kind.name}")

    def _end(self, reason: str) -> None:
        self.has_ended = True
        if self._loop:
            self._loop.unwatch(self.sock.fileno())
        self._end_stream(reason)

    def _end_stream(self, reason: str) -> None:
        if not self._stream_has_ended:
            self._stream_has_ended, self._reason = True, reason
            if self._loop:
                self._receive(b"")

    def _write(self, record: bytes) -> None:
        if self.has_ended:
            return
        if self._outbox:
            self._outbox.write(record)
            return
        with suppress(OSError):  # then the end of the connection will be read
            self.sock.settimeout(_LAST_WRITE_S)
            self.sock.sendall(record)
        self.sock.setblocking(False)

    def _keep(self, data: bytes) -> None:
        self._early += data
        if len(self._early) > _EARLY_BYTES:
            raise FrameError("its agent sends too much")

    def _end_by_signal(self, signum: int) -> None:
        raise CannotStart(self.host, f"it got {signal.Signals(signum).name}.", 128 + signum)


def farewell() -> Scope:
    """The time in which all nodes have to end."""
    return Scope.of(_FAREWELL_S)


def _ignore(data: bytes) -> None:
    """Ignores what comes from an agent that is no longer of use."""
