"""Messages as bytes: fixed little-endian structs, with JSON for what is rare, and never a pickle.

Every frame begins with a header: magic, version, type, the frame's number, the number of frames that the sender has
received, and the session's number. Then follows, by type::

    READY   generation u32, closings u32, four lengths u32, bits, blank bits, blank requests, requests as JSON
    RUN     generation u32, batches u32, length of blank bits u32, flags u8 (1: it has a tuning, 2: it opens the page),
            blank bits, the tuning (fusion threshold u64, hold-off in seconds f64), then each batch: length of bits u32,
            of responses u32, bits, responses as JSON
    END     JSON
    GATHERED  count u32, then each: ranks u32, length u32, the ranks as u32, the body of a READY

Frames of other types concern the connection: `hvdlite.control.greeting` defines their bodies.

A step whose tensors are all known is a READY and a RUN, each with one byte for eight tensors. `decode` trusts nothing:
it compares lengths with the size of the frame and numbers with their ranges, and raises `ProtocolError`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from hvdlite.errors import DuplicateName, HorovodInternalError
from hvdlite.negotiation.messages import (
    EMPTY_GROUP,
    UNSENT,
    Batch,
    End,
    EndKind,
    Gathered,
    Kind,
    News,
    Ready,
    Request,
    Response,
    Run,
    Tuning,
)
from hvdlite.tensors.device import MAX_KIND_CHARACTERS, MAX_ORDINAL, Device
from hvdlite.tensors.dtypes import BY_NAME, MAX_DTYPE_CHARACTERS, MAX_ITEMSIZE, OP_NAMES, DType, ElementType, Opaque

MAX_FRAME_BYTES = 64 << 20
MAX_NAME_CHARACTERS = 4096
MAX_DIMENSIONS = 64
MAX_ELEMENTS = 1 << 56
MAX_BYTES = 8 * MAX_ELEMENTS

_VERSION = 8
_HEADER = struct.Struct("<2sBBQQQ")
_READY = struct.Struct("<IIIIII")
_RUN = struct.Struct("<IIIB")
_TUNING = struct.Struct("<Qd")
_LENGTHS = struct.Struct("<II")
_COUNT = struct.Struct("<I")

Message = Ready | Run | End | Gathered


class ProtocolError(HorovodInternalError):
    """A peer sent bytes that no correct rank of this version sends."""


class Type(IntEnum):
    """The type of a frame."""

    HELLO = 0
    READY = 1
    RUN = 2
    END = 3
    WELCOME = 4
    REFUSAL = 5
    RECEIPT = 6
    GATHERED = 7


class Header(NamedTuple):
    """The header of a frame. ``number`` and ``received`` count messages only, not frames about the connection."""

    kind: int
    number: int
    received: int


def encode(message: Message, number: int, session: int) -> bytes:
    """Encodes ``message`` as frame ``number``, for a link that never resumes and so reports no received frames."""
    kind, body = body_of(message)
    return _HEADER.pack(b"hv", _VERSION, kind, number, 0, session) + body


def decode(frame: bytes, number: int, session: int) -> Message:
    """Decodes ``frame``. Raises ProtocolError if it is malformed or has another ``number`` or ``session``."""
    kind, got, _ = _fields_of(frame, session)
    if got != number:
        raise ProtocolError(f"control frame {got} came instead of {number}")
    return _message(kind, frame)


def frame_of(header: Header, session: int, body: bytes) -> bytes:
    """Returns the frame of ``header`` and ``body``."""
    return _HEADER.pack(b"hv", _VERSION, *header, session) + body


def body_of(message: Message) -> tuple[Type, bytes]:
    """Encodes ``message`` as a type and a body. The header is separate because it differs from peer to peer."""
    if isinstance(message, Ready):
        return Type.READY, _ready_body(message)
    if isinstance(message, Run):
        blank = _bytes_of(message.blank_bits)
        flags = (message.tuning is not None) | message.opens << 1
        parts = [_RUN.pack(message.generation, len(message.batches), len(blank), flags), blank]
        if message.tuning is not None:
            parts.append(_TUNING.pack(*message.tuning))
        for batch in message.batches:
            bits, responses = _bytes_of(batch.bits), _json_of(batch.responses)
            parts += (_LENGTHS.pack(len(bits), len(responses)), bits, responses)
        return Type.RUN, b"".join(parts)
    if isinstance(message, Gathered):
        parts = [_COUNT.pack(len(message.news))]
        for ranks, ready in message.news:
            body = _ready_body(ready)
            parts += (_LENGTHS.pack(len(ranks), len(body)), struct.pack(f"<{len(ranks)}I", *ranks), body)
        return Type.GATHERED, b"".join(parts)
    return Type.END, json.dumps(message).encode()


def header_of(frame: bytes, session: int) -> Header:
    """Reads the header of ``frame``. Raises ProtocolError if it is of another version or another session."""
    return Header(*_fields_of(frame, session))


def _fields_of(frame: bytes, session: int) -> tuple[int, int, int]:
    try:
        magic, version, kind, number, received, got_session = _HEADER.unpack_from(frame)
    except struct.error:
        raise ProtocolError(f"a control frame of {len(frame)} bytes is too short") from None
    if magic != b"hv" or version != _VERSION:
        raise ProtocolError("a control frame has another protocol version; install the same hvdlite on all hosts")
    if got_session != session:
        raise ProtocolError(f"a control frame is of session {got_session:x} instead of {session:x}")
    return kind, number, received


def rest_of(frame: bytes) -> bytes:
    """Returns the body of ``frame``."""
    return frame[_HEADER.size :]


def message_of(header: Header, frame: bytes) -> Message:
    """Decodes the message in ``frame``. Raises ProtocolError if it is malformed or not a message."""
    return _message(header.kind, frame)


def _message(kind: int, frame: bytes) -> Message:
    try:
        return _DECODERS[kind](frame, _HEADER.size)
    except DuplicateName:  # a ValueError, but raised by a signal handler that submitted a tensor twice
        raise
    except (struct.error, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"a control frame is malformed: {error}") from None


def _ready_body(ready: Ready) -> bytes:
    sets = (_bytes_of(ready.bits), _bytes_of(ready.blank_bits), _bytes_of(ready.blank_requests))
    requests = _json_of(ready.requests)
    return b"".join((_READY.pack(ready.generation, ready.closings, *map(len, sets), len(requests)), *sets, requests))


def _bytes_of(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _json_of(rows: tuple[Any, ...]) -> bytes:
    return json.dumps(rows, separators=(",", ":")).encode() if rows else b""


def _decode_ready(frame: bytes, offset: int) -> Ready:
    generation, closings, *lengths = _READY.unpack_from(frame, offset)
    offset += _READY.size
    _expect(len(frame) == offset + sum(lengths), "the length of READY differs from its header")
    sets = []
    for length in lengths[:3]:
        sets.append(int.from_bytes(frame[offset : offset + length], "little"))
        offset += length
    bits, blank_bits, blank_requests = sets
    requests = tuple(map(_request, _rows(frame[offset:])))
    _expect(not blank_bits & ~bits and not blank_requests >> len(requests), "READY has blank tensors that it lacks")
    return Ready(generation, bits, requests, blank_bits, blank_requests, closings)


def _decode_run(frame: bytes, offset: int) -> Run:
    generation, count, blank_length, flags = _RUN.unpack_from(frame, offset)
    offset += _RUN.size
    blank_bits = int.from_bytes(frame[offset : offset + blank_length], "little")
    offset += blank_length
    tuning = None
    _expect(flags < 4, "the flags of RUN")
    if flags & 1:
        tuning = Tuning(*_TUNING.unpack_from(frame, offset))
        _expect(tuning.fusion_threshold <= MAX_BYTES and 0 <= tuning.hold_s < math.inf, "a tuning")
        offset += _TUNING.size
    _expect(count <= len(frame), "RUN has more batches than bytes")
    batches = []
    for _ in range(count):
        bits_length, responses_length = _LENGTHS.unpack_from(frame, offset)
        offset += _LENGTHS.size
        end = offset + bits_length + responses_length
        _expect(end <= len(frame), "a batch is longer than its frame")
        bits = int.from_bytes(frame[offset : offset + bits_length], "little")
        responses = _rows(frame[offset + bits_length : end]) if responses_length else ()
        batches.append(Batch(bits, tuple(map(_response, responses))))
        offset = end
    _expect(offset == len(frame), "RUN has bytes after its last batch")
    return Run(generation, tuple(batches), blank_bits, tuning, bool(flags & 2))


def _decode_gathered(frame: bytes, offset: int) -> Gathered:
    (count,) = _COUNT.unpack_from(frame, offset)
    offset += _COUNT.size
    _expect(count <= len(frame), "GATHERED has more news than bytes")
    news = []
    for _ in range(count):
        ranks_count, length = _LENGTHS.unpack_from(frame, offset)
        body = offset + _LENGTHS.size + _COUNT.size * ranks_count
        _expect(body + length <= len(frame), "news are longer than their frame")
        ranks = struct.unpack_from(f"<{ranks_count}I", frame, offset + _LENGTHS.size)
        offset = body + length
        news.append(News(ranks, _decode_ready(frame[body:offset], 0)))
    _expect(offset == len(frame), "GATHERED has bytes after its last news")
    return Gathered(tuple(news))


def _decode_end(frame: bytes, offset: int) -> End:
    kind, rank, host, cause, waited_s, missing = json.loads(frame[offset:])
    _expect(_is_int(rank) and rank >= 0 and isinstance(host, str) and isinstance(cause, str), "END")
    _expect(isinstance(waited_s, (int, float)) and isinstance(missing, list), "END")
    pairs = []
    for late, name in missing:
        _expect(_is_int(late) and isinstance(name, str), "a missing tensor")
        pairs.append((late, name))
    _expect(EndKind(kind) not in UNSENT, "END")
    return End(EndKind(kind), rank, host, cause, float(waited_s), tuple(pairs))


_DECODERS: dict[int, Callable[[bytes, int], Message]] = {
    Type.READY: _decode_ready,
    Type.RUN: _decode_run,
    Type.END: _decode_end,
    Type.GATHERED: _decode_gathered,
}


def _rows(text: bytes) -> list[Any]:
    rows = json.loads(text) if text else []
    _expect(isinstance(rows, list), "a table is not a list")
    return list(rows)


def _request(row: Any) -> Request:
    name, kind, dtype, shape, op, prescale, postscale, root, cacheable, splits, peer, group_length, device = row
    _expect(isinstance(name, str) and len(name) <= MAX_NAME_CHARACTERS, "a name")
    _expect(isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS, "a shape")
    elements = 1
    for extent in shape:
        _expect(_is_int(extent) and 0 <= extent <= MAX_ELEMENTS, "an extent")
        elements *= extent
        _expect(elements <= MAX_ELEMENTS, "a shape is too large")
    element = _element_type(dtype)
    _expect(elements * element.itemsize <= MAX_BYTES, "a tensor is too large")
    _expect(_is_int(op) and op in OP_NAMES and _is_int(root) and root >= 0 and isinstance(cacheable, bool), "a request")
    _expect(isinstance(prescale, (int, float)) and isinstance(postscale, (int, float)), "a scale")
    _expect(_are_counts(splits) and _is_int(peer) and peer >= -1, "splits")
    _expect(_is_int(group_length) and EMPTY_GROUP <= group_length <= MAX_ELEMENTS, "a group")
    return Request(
        name,
        Kind(kind),
        element,
        tuple(shape),
        op,
        float(prescale),
        float(postscale),
        root,
        cacheable,
        tuple(splits),
        peer,
        group_length,
        _device(device),
    )


def _device(value: Any) -> Device:
    kind, ordinal = value
    _expect(isinstance(kind, str) and kind.isascii() and kind.isalnum() and len(kind) <= MAX_KIND_CHARACTERS, "a kind")
    _expect(_is_int(ordinal) and 0 <= ordinal <= MAX_ORDINAL, "a device")
    return Device(kind, ordinal)


def _element_type(value: Any) -> ElementType:
    if not isinstance(value, list):
        return DType(value)
    name, itemsize = value
    _expect(isinstance(name, str) and 0 < len(name) <= MAX_DTYPE_CHARACTERS and name not in BY_NAME, "a dtype")
    _expect(_is_int(itemsize) and 0 < itemsize <= MAX_ITEMSIZE, "an element")
    return Opaque(name, itemsize)


def _response(row: Any) -> Response:
    name, error, rows, bit, request, is_blank = row
    _expect(isinstance(name, str) and isinstance(error, str) and isinstance(is_blank, bool), "a response")
    _expect(_are_counts(rows), "rows")
    _expect(_is_int(bit) and -1 <= bit < 8 * MAX_FRAME_BYTES, "a bit")
    return Response(name, error, tuple(rows), bit, None if request is None else _request(request), is_blank)


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(_is_int(count) and 0 <= count <= MAX_ELEMENTS for count in values)


def _is_int(value: Any) -> bool:
    return type(value) is int


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)
