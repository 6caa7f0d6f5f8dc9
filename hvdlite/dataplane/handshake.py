"""How two neighbours of a ring prove to each other that they belong to the same job.

The *caller* has connected to an address that was published for the *callee*; neither believes the other yet.
Both know the secret of the job. Three messages, each capped by its fixed size::

    caller -> callee   HELLO      session, rank of the caller, rank of the callee, nonce of the caller
    caller <- callee   CHALLENGE  nonce of the callee, proof of the callee
    caller -> callee   PROOF      proof of the caller

A proof is HMAC-SHA256 under the job's secret over who proves, the HELLO, and both nonces: it is worth nothing to
another session, for other ranks, in the other direction, or a second time. The two classes are state machines: messages
in, messages out; sockets and clocks are their user's.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from typing import Final

_HELLO: Final = struct.Struct("<8sQII32s")
_CHALLENGE: Final = struct.Struct("<32s32s")
_MAGIC: Final = b"hvdRing1"
_NONCE_BYTES: Final = 32
_CONCURRENT_CALLERS: Final = 64


class Refused(Exception):
    """The other side did not prove that it belongs here."""


def session_key(secret: bytes, session: int) -> int:
    """A number of 64 bits that stands for the session in every frame and that only ranks of the job can know."""
    return int.from_bytes(_hmac(secret, b"session", struct.pack("<Q", session))[:8], "little")


class Caller:
    """Rank ``rank``, which connected to where rank ``to`` should be."""

    def __init__(self, secret: bytes, session: int, rank: int, to: int) -> None:
        self._secret = secret
        self._to = to
        self.hello = _HELLO.pack(_MAGIC, session, rank, to, secrets.token_bytes(_NONCE_BYTES))

    def prove(self, challenge: bytes) -> bytes:
        """The PROOF that answers ``challenge``. Raises Refused if the callee's own proof is wrong."""
        if len(challenge) != _CHALLENGE.size:
            raise Refused(f"rank {self._to} does not speak this protocol")
        nonce, proof = _CHALLENGE.unpack(challenge)
        if not hmac.compare_digest(proof, _hmac(self._secret, b"callee", self.hello + nonce)):
            raise Refused(f"rank {self._to} does not have the secret of this job")
        return _hmac(self._secret, b"caller", self.hello + nonce)


class Callee:
    """Rank ``rank``, to which anybody may connect and which waits for rank ``caller``.

    ``is_admitted`` becomes true with the first valid proof. ``refused`` counts what was not valid.
    """

    def __init__(self, secret: bytes, session: int, rank: int, caller: int) -> None:
        self._secret = secret
        self._expected = (_MAGIC, session, caller, rank)
        self._proofs: dict[bytes, bytes] = {}
        self.is_admitted = False
        self.refused = 0

    def receive(self, connection: bytes, message: bytes) -> bytes | None:
        """Takes a message that came over ``connection``; returns what to send back, if anything."""
        expected = self._proofs.pop(connection, None)
        if expected is not None and hmac.compare_digest(message, expected):
            self.is_admitted = True
            return None
        if len(message) != _HELLO.size or _HELLO.unpack(message)[:4] != self._expected:
            self.refused += 1
            return None
        if len(self._proofs) == _CONCURRENT_CALLERS:
            # The oldest has had its chance; strangers must not make this rank remember without bound.
            del self._proofs[next(iter(self._proofs))]
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._proofs[connection] = _hmac(self._secret, b"caller", message + nonce)
        return _CHALLENGE.pack(nonce, _hmac(self._secret, b"callee", message + nonce))


def _hmac(secret: bytes, label: bytes, content: bytes) -> bytes:
    return hmac.digest(secret, b"hvdlite-ring-" + label + b"\0" + content, "sha256")
