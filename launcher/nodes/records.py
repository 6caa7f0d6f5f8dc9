"""What node 0 and another node send each other: sealed records over one connection.

The other node calls, and both prove that they know the key (`hvdlite.net.handshake`); everything else is sealed
(`hvdlite.net.sealed`). It begins with ``INTRODUCTION``, and gets ``WELCOME`` or ``REFUSAL``. From then on the
connection carries the stream between hvdrun and the agent that the other node runs, and a few words between the two
hvdruns.
"""

import json
import socket
from collections.abc import Iterator
from enum import IntEnum
from typing import Annotated, Any, Final, NamedTuple

from hvdlite.net.sealed import KEYS_BYTES, Sealer
from hvdlite.net.sockets import prepare
from hvdlite.rendezvous.job import Job

from ..stream.fields import Count, Line, integer, record
from ..stream.frames import FrameError
from ..stream.hello import Hello

MAX_BYTES: Final = 256 << 10  # of a record
_READ_BYTES: Final = 256 << 10
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}  # a node that is cut off while all wait


class Record(IntEnum):
    """The kinds of records."""

    INTRODUCTION = 1  # up
    WELCOME = 2  # down
    REFUSAL = 3  # down
    STREAM = 4  # both: bytes between hvdrun and the agent
    END = 5  # both: the stream in this direction has ended
    SIGNAL = 6  # up: `messages.Signalled`, which hvdrun got there
    OVER = 7  # down
    PING = 8  # up, and down in answer: no fields


def key_of(secret: str) -> bytes:
    """The key for the handshake. Raises ValueError if ``secret`` is not 64 hexadecimal digits."""
    return Job("nodes", secret).key("nodes")


class Introduction(NamedTuple):
    """Who calls: node ``node`` of ``nodes``, which takes ``slots`` ranks, 0 if its user has not said."""

    node: Count
    nodes: Count
    slots: Count
    hello: Annotated[Hello, record(Hello)]

    def fields(self) -> dict[str, Any]:
        return {**self._asdict(), "hello": self.hello._asdict()}


class Welcome(NamedTuple):
    """Node 0, on ``host``, lets the node in."""

    host: Line


class Reason(NamedTuple):
    """Why a node is refused, or why a stream has ended."""

    reason: Line


class Over(NamedTuple):
    """The exit code of the job, and why it did not start."""

    code: Annotated[int, integer(0, 255)]
    text: Line


class Channel:
    """One end of a connection that both have proved: ``sock`` is not blocking from now on."""

    def __init__(self, sock: socket.socket, keys: bytes, *, is_caller: bool) -> None:
        half = KEYS_BYTES // 2
        own, peers = (keys[:half], keys[half:]) if is_caller else (keys[half:], keys[:half])
        self._sealer = Sealer(own, peers, MAX_BYTES)
        self.sock = sock
        prepare(sock)
        for name, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        sock.setblocking(False)

    def seal(self, kind: Record, **fields: Any) -> bytes:
        return self._sealer.seal(kind, json.dumps(fields).encode())

    def seal_stream(self, data: bytes) -> Iterator[bytes]:
        """The records that carry ``data``."""
        for start in range(0, len(data), MAX_BYTES):
            yield self._sealer.seal(Record.STREAM, data[start : start + MAX_BYTES])

    def receive(self) -> Iterator[tuple[Record, bytes]]:
        """Yields what has come. Raises ConnectionError at the end, and FrameError for what is no record."""
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise ConnectionError(error.strerror or str(error)) from None
        if not data:
            raise ConnectionError
        yield from self._opened(data)

    def rest(self) -> Iterator[tuple[Record, bytes]]:
        """Yields what came together with the last record that was taken. Raises FrameError in the same way."""
        return self._opened(b"")

    def _opened(self, data: bytes) -> Iterator[tuple[Record, bytes]]:
        try:
            for kind, payload in self._sealer.open(data):
                yield Record(kind), payload
        except ValueError as error:  # Unsealed, or a kind that does not exist
            raise FrameError(str(error)) from None
