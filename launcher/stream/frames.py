"""Frames between hvdrun and its agents: a length, a kind and a payload.

The length counts the payload only. Length and kind are checked before anything is stored, so a damaged stream closes
the connection and costs no memory. The payloads are those of `messages`.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from typing import Final

GREETING: Final = b"\0hvdlite agent\0"
"""How the stream of an agent begins, so that output of a login shell before it is not mistaken for frames."""
MAX_PAYLOAD_BYTES: Final = 64 << 20
_HEADER: Final = struct.Struct("!IB")


class FrameError(ValueError):
    """The stream is damaged; nothing that follows can be understood."""


def pack(kind: int, payload: bytes) -> bytes:
    """One frame. Raises FrameError if the payload is larger than the other side accepts."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError(f"a frame of {len(payload)} bytes is larger than the {MAX_PAYLOAD_BYTES} that are accepted")
    return _HEADER.pack(len(payload), kind) + payload


class FrameReader:
    """Cuts a stream of bytes into frames of these ``kinds``."""

    def __init__(self, kinds: Container[int]) -> None:
        self._kinds = kinds
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yields the frames that ``data`` completes. Raises FrameError at the first invalid one."""
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= _HEADER.size:
                length, kind = _HEADER.unpack_from(self._buffer, start)
                if length > MAX_PAYLOAD_BYTES or kind not in self._kinds:
                    raise FrameError(f"not a frame: kind {kind}, {length} bytes")
                end = start + _HEADER.size + length
                if end > len(self._buffer):
                    break
                yield kind, bytes(self._buffer[start + _HEADER.size : end])
                start = end
        finally:
            del self._buffer[:start]
