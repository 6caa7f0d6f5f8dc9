"""What node 0 and another node tell each other: sealed records over one connection.

The other node calls, and both prove that they know the key (`hvdlite.net.handshake`); everything else is sealed
(`hvdlite.net.sealed`). It begins with ``INTRODUCTION``, and gets ``WELCOME`` or ``REFUSAL``. From then on the
connection carries the stream between hvdrun and the agent that the other node runs, and a few words between the two
hvdruns.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from hvdlite.net.sealed import KEYS_BYTES, Sealer
from hvdlite.net.sockets import prepare
from hvdlite.rendezvous.job import Job

from ..stream.frames import FrameError, unpack_message
from ..stream.hello import Hello

MAX_BYTES: Final = 256 << 10  # of a record
_READ_BYTES: Final = 256 << 10
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}  # a node that is cut off while all wait


class Record(IntEnum):
    """The kinds of records."""

    INTRODUCTION = 1  # up: {"node", "nodes", "slots", "hello"}
    WELCOME = 2  # down: {"host"}, the name of node 0
    REFUSAL = 3  # down: {"reason"}
    STREAM = 4  # both: bytes between hvdrun and the agent
    END = 5  # both: {"reason"}, the stream in this direction has ended
    SIGNAL = 6  # up: {"signum"}, which hvdrun got there
    OVER = 7  # down: {"code", "text"}, the exit code of the job, and why it did not start
    PING = 8  # up, and down in answer: {}


def key_of(secret: str) -> bytes:
    """The key for the handshake. Raises ValueError if ``secret`` is not 64 hexadecimal digits."""
    return Job("nodes", secret).key("nodes")


@dataclass(frozen=True, slots=True)
class Introduction:
    """Who calls: node ``node`` of ``nodes``, which takes ``slots`` ranks, 0 if its user has not said."""

    node: int
    nodes: int
    slots: int
    hello: Hello

    @classmethod
    def parse(cls, payload: bytes) -> Introduction:
        """Raises FrameError if it is malformed, or of a version of hvdlite with other fields."""
        fields = unpack_message(payload)
        hello, numbers = fields.get("hello"), [fields.get(name) for name in ("node", "nodes", "slots")]
        if not isinstance(hello, dict) or not all(type(number) is int and number >= 0 for number in numbers):
            raise FrameError("the introduction of a node is malformed")
        return cls(fields["node"], fields["nodes"], fields["slots"], Hello.parse(hello))

    def fields(self) -> dict[str, Any]:
        return {"node": self.node, "nodes": self.nodes, "slots": self.slots, "hello": self.hello.fields()}


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
