"""The handshake in which both ends of a probe prove that they belong to the same run of hvdrun.

Both hold a token that hvdrun made for this one test and gave to the agents over their own connections::

    dialler -> listener   HELLO      nonce of the dialler
    dialler <- listener   CHALLENGE  number of the listener's host, nonce of the listener, proof of the listener
    dialler -> listener   PROOF      proof of the dialler

All sizes are fixed. A proof is HMAC-SHA256 under the token over the role and everything said before, so it is worthless
for another connection or in the other direction. The number tells the dialler which host it has really reached: this
detects an address that two hosts have, or that a router redirects.
"""

from __future__ import annotations

import hmac
import os
import struct
from typing import Final

_MAGIC: Final = b"hvdProbe"
_NONCE_BYTES: Final = 32
_STATEMENT: Final = struct.Struct("!I32s")

HELLO_BYTES: Final = len(_MAGIC) + _NONCE_BYTES
PROOF_BYTES: Final = 32
CHALLENGE_BYTES: Final = _STATEMENT.size + PROOF_BYTES


class Stranger(Exception):
    """The other end does not belong to this test."""


def hello() -> bytes:
    """The dialler's first message."""
    return _MAGIC + os.urandom(_NONCE_BYTES)


def challenge(token: bytes, host: int, heard: bytes) -> bytes:
    """The listener's answer to the HELLO ``heard``. Raises Stranger if that is malformed."""
    if not heard.startswith(_MAGIC):
        raise Stranger
    statement = _STATEMENT.pack(host, os.urandom(_NONCE_BYTES))
    return statement + _proof(token, b"listener", heard + statement)


def answer(token: bytes, said: bytes, heard: bytes) -> tuple[int, bytes]:
    """The number of the host that sent the CHALLENGE ``heard``, and the PROOF to answer it with.

    Raises Stranger if the listener does not have the token.
    """
    statement, proof = heard[: _STATEMENT.size], heard[_STATEMENT.size :]
    if len(heard) != CHALLENGE_BYTES or not hmac.compare_digest(proof, _proof(token, b"listener", said + statement)):
        raise Stranger
    return _STATEMENT.unpack(statement)[0], _proof(token, b"dialler", said + heard)


def check(token: bytes, heard: bytes, said: bytes, proof: bytes) -> None:
    """Raises Stranger unless ``proof`` answers the CHALLENGE ``said`` to the HELLO ``heard``."""
    if not hmac.compare_digest(proof, _proof(token, b"dialler", heard + said)):
        raise Stranger


def _proof(token: bytes, label: bytes, content: bytes) -> bytes:
    return hmac.digest(token, b"hvdlite-probe-" + label + b"\0" + content, "sha256")
