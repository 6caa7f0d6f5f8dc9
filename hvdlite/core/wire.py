"""Messages as bytes: fixed little-endian structs, with JSON inside for what is rare, and never a pickle.

Every frame begins with magic, version, type, a sequence number and the session's number; the link checks the last two.
Then, by type::

    HELLO   nothing
    READY   generation u32, length of bits u32, length of requests u32, bits, requests as JSON
    RUN     generation u32, batches u32, then each batch: length of bits u32, of responses u32, bits, responses as JSON
    END     JSON

A step whose tensors are all known is a READY and a RUN of a few bytes for each eight tensors. `decode` trusts nothing:
lengths are compared with what is there, numbers with their ranges, and anything else raises `ProtocolError`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from hvdlite.core.dtypes import OP_NAMES, DType
from hvdlite.core.messages import Batch, End, EndKind, Kind, Ready, Request, Response, Run
from hvdlite.errors import HorovodInternalError

MAX_FRAME_BYTES = 64 << 20
MAX_NAME_CHARACTERS = 4096
MAX_DIMENSIONS = 64
MAX_ELEMENTS = 1 << 56

_VERSION = 1
_HEADER = struct.Struct("<2sBBIQ")
_READY = struct.Struct("<III")
_RUN = struct.Struct("<II")
_LENGTHS = struct.Struct("<II")

Message = Ready | Run | End | None


class ProtocolError(HorovodInternalError):
    """A peer sent bytes that no rank of this version sends."""


class Type(IntEnum):
    """The type of a frame."""

    HELLO = 0
    READY = 1
    RUN = 2
    END = 3


def encode(message: Message, sequence: int, session: int) -> bytes:
    """The frame of ``message``; None is HELLO."""
    if isinstance(message, Ready):
        bits, requests = _bytes_of(message.bits), _json_of(message.requests)
        kind, body = Type.READY, _READY.pack(message.generation, len(bits), len(requests)) + bits + requests
    elif isinstance(message, Run):
        parts = [_RUN.pack(message.generation, len(message.batches))]
        for batch in message.batches:
            bits, responses = _bytes_of(batch.bits), _json_of(batch.responses)
            parts += (_LENGTHS.pack(len(bits), len(responses)), bits, responses)
        kind, body = Type.RUN, b"".join(parts)
    elif isinstance(message, End):
        kind, body = Type.END, json.dumps(message).encode()
    else:
        kind, body = Type.HELLO, b""
    return _HEADER.pack(b"hv", _VERSION, kind, sequence & 0xFFFFFFFF, session) + body


def decode(frame: bytes, sequence: int, session: int) -> Message:
    """The message in ``frame``, which must carry ``sequence`` and ``session``. Raises ProtocolError."""
    try:
        magic, version, kind, got_sequence, got_session = _HEADER.unpack_from(frame)
    except struct.error:
        raise ProtocolError(f"a control frame of {len(frame)} bytes is too short") from None
    if magic != b"hv" or version != _VERSION:
        raise ProtocolError("a control frame is not of this protocol version; install one hvdlite on all hosts")
    if got_session != session or got_sequence != sequence & 0xFFFFFFFF:
        raise ProtocolError(f"control frame {got_sequence} of session {got_session:x} came instead of {sequence}")
    try:
        return _DECODERS[kind](frame, _HEADER.size)
    except (struct.error, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"a control frame is malformed: {error}") from None


def _bytes_of(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _json_of(rows: tuple[Any, ...]) -> bytes:
    return json.dumps(rows, separators=(",", ":")).encode() if rows else b""


def _decode_hello(frame: bytes, offset: int) -> None:
    _expect(len(frame) == offset, "HELLO has a body")


def _decode_ready(frame: bytes, offset: int) -> Ready:
    generation, bits_length, requests_length = _READY.unpack_from(frame, offset)
    offset += _READY.size
    _expect(len(frame) == offset + bits_length + requests_length, "READY has another length than it says")
    bits = int.from_bytes(frame[offset : offset + bits_length], "little")
    return Ready(generation, bits, tuple(map(_request, _rows(frame[offset + bits_length :]))))


def _decode_run(frame: bytes, offset: int) -> Run:
    generation, count = _RUN.unpack_from(frame, offset)
    offset += _RUN.size
    _expect(count <= len(frame), "RUN has more batches than bytes")
    batches = []
    for _ in range(count):
        bits_length, responses_length = _LENGTHS.unpack_from(frame, offset)
        offset += _LENGTHS.size
        end = offset + bits_length + responses_length
        _expect(end <= len(frame), "a batch is longer than its frame")
        bits = int.from_bytes(frame[offset : offset + bits_length], "little")
        batches.append(Batch(bits, tuple(map(_response, _rows(frame[offset + bits_length : end])))))
        offset = end
    _expect(offset == len(frame), "RUN has bytes after its last batch")
    return Run(generation, tuple(batches))


def _decode_end(frame: bytes, offset: int) -> End:
    kind, rank, host, cause, waited_s, missing = json.loads(frame[offset:])
    _expect(_is_int(rank) and rank >= 0 and isinstance(host, str) and isinstance(cause, str), "END")
    _expect(isinstance(waited_s, (int, float)) and isinstance(missing, list), "END")
    pairs = []
    for late, name in missing:
        _expect(_is_int(late) and isinstance(name, str), "a missing tensor")
        pairs.append((late, name))
    return End(EndKind(kind), rank, host, cause, float(waited_s), tuple(pairs))


_DECODERS: dict[int, Callable[[bytes, int], Message]] = {
    Type.HELLO: _decode_hello,
    Type.READY: _decode_ready,
    Type.RUN: _decode_run,
    Type.END: _decode_end,
}


def _rows(text: bytes) -> list[Any]:
    rows = json.loads(text) if text else []
    _expect(isinstance(rows, list), "a table is not a list")
    return list(rows)


def _request(row: Any) -> Request:
    name, kind, dtype, shape, op, prescale, postscale, root, cacheable, splits, peer = row
    _expect(isinstance(name, str) and len(name) <= MAX_NAME_CHARACTERS, "a name")
    _expect(isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS, "a shape")
    elements = 1
    for extent in shape:
        _expect(_is_int(extent) and 0 <= extent <= MAX_ELEMENTS, "an extent")
        elements *= extent
        _expect(elements <= MAX_ELEMENTS, "a shape is too large")
    _expect(_is_int(op) and op in OP_NAMES and _is_int(root) and root >= 0 and isinstance(cacheable, bool), "a request")
    _expect(isinstance(prescale, (int, float)) and isinstance(postscale, (int, float)), "a scale")
    _expect(_are_counts(splits) and _is_int(peer) and peer >= -1, "splits")
    return Request(
        name,
        Kind(kind),
        DType(dtype),
        tuple(shape),
        op,
        float(prescale),
        float(postscale),
        root,
        cacheable,
        tuple(splits),
        peer,
    )


def _response(row: Any) -> Response:
    name, error, rows, bit, request = row
    _expect(isinstance(name, str) and isinstance(error, str), "a response")
    _expect(_are_counts(rows), "rows")
    _expect(_is_int(bit) and -1 <= bit < 8 * MAX_FRAME_BYTES, "a bit")
    return Response(name, error, tuple(rows), bit, None if request is None else _request(request))


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(_is_int(count) and 0 <= count <= MAX_ELEMENTS for count in values)


def _is_int(value: Any) -> bool:
    return type(value) is int


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)
