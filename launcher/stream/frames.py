"""Frames between hvdrun and its agents: a length, a kind and a payload.

The length counts the payload only and is checked before anything is stored, so a damaged stream closes the connection
and costs no memory. Rare messages are JSON; output is four bytes of rank followed by the bytes that the worker wrote.

The agent's stream begins with `GREETING`, so that output of a login shell before it is not mistaken for frames, and
``HELLO``. hvdrun may then ``ASK``, and every question gets one ``ANSWER``, in any order. It sends ``START`` once,
``SIGNAL`` as often as it likes and ``END`` when no rank is left; the end of its stream without ``END`` means that it
died. The agent sends ``STARTED`` or ``FAILED`` once for each rank, then output, then ``EXITED``: a worker's output
comes before the news of its end. ``STOPPED`` and ``FOUND`` may come between.

``LEASE`` tells an agent of another host that hvdrun lives, and is answered. ``OPEN``, ``DATA`` and ``CLOSE`` carry
connections that the workers of such a host make to hvdrun. ``STDIN`` carries what a rank may read, of which the agent
holds no more than a window; ``TAKEN`` opens it again.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final

from hvdlite.observe.untrusted import parse

GREETING: Final = b"\0hvdlite agent\0"
MAX_PAYLOAD_BYTES: Final = 64 << 20
NUMBERS: Final = range(1 << 32)  # of ranks and channels
_HEADER: Final = struct.Struct("!IB")
_NUMBER: Final = struct.Struct("!I")


class Kind(IntEnum):
    """The kinds of frames."""

    # down: {"cwd", "command", "environment", "appended", "inherits", "listen": {name: service}, "workers": [...],
    # "keeps_boxes"}
    START = 1
    # down: {"signum", "everyone"}: for every process of every worker, or for the ranks themselves; up: {"signum"}, a
    # scheduler asks all processes of the job there to end
    SIGNAL = 2
    END = 3  # down: {"patience_s", "grace_s"} for what the workers left behind: before SIGTERM, and then before SIGKILL
    STARTED = 4  # up: {"rank", "pid"}
    FAILED = 5  # up: {"rank", "reason"}, the rank could not be started
    # up: {"rank", "pid", "code", "time", "is_oom", "ended_by", "agent"}; a code below 0 is a signal, time is the host's
    # monotonic, ended_by is null or [rank, fate]: because of which rank the session of this one ended; agent
    # describes an agent that had given up before, as in "which got SIGTERM", and is empty for any other
    EXITED = 6
    STDOUT = 7  # up: rank and bytes
    STDERR = 8  # up: rank and bytes
    HELLO = 9  # up: what hello.describe() says
    ASK = 10  # down: {"id", "what", ...}
    ANSWER = 11  # up: {"id", "answer"} or {"id", "error"}
    LEASE = 12  # down: {"sent", "for_s"}, null for as long as it takes; up: {"sent", "time"} at once
    OPEN = 13  # up: {"channel", "service"}
    DATA = 14  # both: channel and bytes
    CLOSE = 15  # both: {"channel"}
    FILES = 16  # down: the next bytes of an archive
    STDIN = 17  # down: rank and bytes, none for the end of the file
    TAKEN = 18  # up: {"rank", "count"}: so many of these bytes are in the rank's pipe; null: nobody reads it
    STOPPED = 19  # up: {"rank", "pid"}: a signal stopped the rank a while ago, and it has not gone on
    FOUND = 20  # up: {"rank", "finding"}: what the rank wrote to its black box for people (`observe.blackbox.Finding`)
    BOX = (
        21  # up: the rank has ended, and this is its black box, if hvdrun wants to keep it: see `agent.packing.packed`
    )


_KINDS: Final = frozenset(Kind)


class FrameError(ValueError):
    """The stream is damaged; nothing that follows can be understood."""


def pack(kind: Kind, payload: bytes) -> bytes:
    """One frame. Raises FrameError if the payload is larger than the other side accepts."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError(f"a frame of {len(payload)} bytes is larger than the {MAX_PAYLOAD_BYTES} that are accepted")
    return _HEADER.pack(len(payload), kind) + payload


def pack_message(kind: Kind, **fields: Any) -> bytes:
    """One frame of JSON."""
    return pack(kind, json.dumps(fields).encode())


def pack_output(kind: Kind, number: int, data: bytes) -> bytes:
    """One frame of bytes for a rank or a channel."""
    return pack(kind, _NUMBER.pack(number) + data)


def unpack_message(payload: bytes) -> dict[str, Any]:
    """The fields of a JSON frame. Raises FrameError if it holds none."""
    try:
        fields = parse(payload)
    except ValueError as error:
        raise FrameError(f"a frame holds no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise FrameError(f"a frame holds {type(fields).__name__} instead of fields")
    return fields


def unpack_output(payload: bytes) -> tuple[int, bytes]:
    """The rank or channel and the bytes of a frame. Raises FrameError if it is too short."""
    if len(payload) < _NUMBER.size:
        raise FrameError("an output frame is too short")
    (number,) = _NUMBER.unpack_from(payload)
    return number, payload[_NUMBER.size :]


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """Yields the frames that ``data`` completes. Raises FrameError at the first invalid one."""
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= _HEADER.size:
                length, kind = _HEADER.unpack_from(self._buffer, start)
                if length > MAX_PAYLOAD_BYTES or kind not in _KINDS:
                    raise FrameError(f"not a frame: kind {kind}, {length} bytes")
                end = start + _HEADER.size + length
                if end > len(self._buffer):
                    break
                yield Kind(kind), bytes(self._buffer[start + _HEADER.size : end])
                start = end
        finally:
            del self._buffer[:start]
