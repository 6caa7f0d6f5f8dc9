"""Frames of a job that starts, as somebody on its network can record them."""

from __future__ import annotations

from collections.abc import Iterator

from hvdlite.net.handshake import Caller
from tests.security.sniffer import Capture

_GREETING_BYTES = 64  # of ZeroMQ's protocol
_LONG = 2  # the flag of a frame whose length has eight bytes
_PIECES = (len(Caller(b"", 0, 0, 1).hello), 32)  # of the ring: a hello and a proof
_MOST_BYTES = 64 << 10  # of each connection


def recorded_frames(seen: Capture, ports: set[int]) -> dict[int, list[bytes]]:
    """The first frames that were sent to each of ``ports``, in their order, those of all connections together."""
    frames: dict[int, list[bytes]] = {port: [] for port in ports}
    for flow, stream in seen.streams().items():
        if flow.target[1] in ports:
            cut = _zeromq_frames if stream[:1] == b"\xff" else _ring_frames
            frames[flow.target[1]] += cut(stream[:_MOST_BYTES])
    return frames


def _zeromq_frames(stream: bytes) -> Iterator[bytes]:
    yield stream[:_GREETING_BYTES]
    at = _GREETING_BYTES
    while at < len(stream):
        width = 8 if stream[at] & _LONG else 1
        end = at + 1 + width + int.from_bytes(stream[at + 1 : at + 1 + width], "big")
        yield stream[at:end]
        at = end


def _ring_frames(stream: bytes) -> Iterator[bytes]:
    at = 0
    for size in _PIECES:
        yield stream[at : at + size]
        at += size
    while at < len(stream):
        end = at + 32 + int.from_bytes(stream[at + 4 : at + 8], "little")
        yield stream[at : min(end, at + 200)]
        at = end
