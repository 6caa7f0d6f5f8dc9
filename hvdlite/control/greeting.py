"""The greeting on a new connection, before it carries messages.

The dialling end sends HELLO; the root answers WELCOME or REFUSAL. Their headers contain how many messages the sender
has received over earlier connections, and `hvdlite.control.delivery` resends the rest. A HELLO also contains how many
messages the rank has sent, so that the root notices if none arrives, and a token that only this rank knows. The root
has got the token's digest when the job began, so no other process of the job can impersonate a rank.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import NamedTuple

from hvdlite.negotiation.wire import Header, ProtocolError, Type, frame_of, rest_of

TOKEN_BYTES = 32

_HELLO = struct.Struct(f"<II{TOKEN_BYTES}s")
_MAX_REASON_BYTES = 4096


class Refused(ProtocolError):
    """The root refuses this rank."""


class Hello(NamedTuple):
    """The rank that dials, the size of its group, and its token."""

    rank: int
    size: int
    token: bytes


def digest(token: bytes) -> str:
    """The digest of a token, which may be published."""
    return hashlib.blake2b(token, digest_size=32).hexdigest()


def fits(token: bytes, expected: str) -> bool:
    """True if ``token`` has the digest ``expected``."""
    return hmac.compare_digest(digest(token), expected)


def hello(message: Hello, sent: int, received: int, session: int) -> bytes:
    """The first frame of a connection."""
    return frame_of(Header(Type.HELLO, sent, received), session, _HELLO.pack(*message))


def welcome(received: int, session: int) -> bytes:
    """The frame that accepts a HELLO."""
    return frame_of(Header(Type.WELCOME, 0, received), session, b"")


def refusal(reason: str, session: int) -> bytes:
    """The frame that refuses a HELLO; also the last frame to a peer that is given up."""
    return frame_of(Header(Type.REFUSAL, 0, 0), session, reason.encode()[:_MAX_REASON_BYTES])


def read_hello(header: Header, frame: bytes) -> Hello:
    """The HELLO in ``frame``. Raises ProtocolError for any other frame."""
    body = rest_of(frame)
    if header.kind != Type.HELLO or len(body) != _HELLO.size:
        raise ProtocolError("a connection does not begin with a hello")
    return Hello(*_HELLO.unpack(body))


def read_refusal(frame: bytes) -> str:
    """The reason in a REFUSAL, made printable."""
    text = rest_of(frame)[:_MAX_REASON_BYTES].decode(errors="replace")
    return "".join(character if character.isprintable() else "?" for character in text)
