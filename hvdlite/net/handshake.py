"""The handshake in which two processes prove that they belong to the same job and agree where to resume.

The *caller* has connected to an address that was published for the *callee*; neither trusts the other yet.
Both know the job's secret. Four messages of fixed sizes::

    caller -> callee   HELLO      session, rank of the caller, rank of the callee, number of the connection,
                                  how many there are, nonce of the caller, and a proof that it knows the secret
    caller <- callee   CHALLENGE  nonce of the callee, proof of the callee
    caller -> callee   PROOF      proof of the caller
    caller <- callee   WELCOME    how many frames the callee has received over this connection and those before it,
                                  and a proof of that

A proof is HMAC-SHA256 under the job's secret over a label, the HELLO, and both nonces: it is worthless in another
session, for other ranks, in the other direction, or a second time. Only the proof in the HELLO can be replayed by an
eavesdropper; it merely distinguishes callers of the job from strangers before they are answered. A callee with `Nonces`
refuses a nonce that comes again.
Between PROOF and WELCOME the callee drops an older connection of the same number, so the count in WELCOME is final.
From the same secret and nonces both derive the ``keys`` of this connection: 16 bytes for its frames and 16 for their
acknowledgements.

Both classes are state machines without sockets or clocks.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections import OrderedDict
from typing import Final

_HELLO: Final = struct.Struct("<8sQIIHH32s32s")
_CHALLENGE: Final = struct.Struct("<32s32s")
_WELCOME: Final = struct.Struct("<Q32s")
_MAGIC: Final = b"hvdRing4"
_NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = 32
_MOST_NONCES: Final = 1 << 14


class Refused(Exception):
    """The other side did not prove that it belongs here."""


class Disagrees(Refused):
    """The other side belongs to the job, but is configured differently."""


def session_key(secret: bytes, session: int) -> int:
    """A 64-bit number that marks the session in every frame. Only ranks of the job can compute it."""
    return int.from_bytes(_hmac(secret, b"session", struct.pack("<Q", session))[:8], "little")


class Caller:
    """Connection ``connection`` of ``connections`` from rank ``rank`` to the address of rank ``to``.

    ``awaits`` is the length of the next message, 0 once the handshake is over. Then ``received`` is the number of
    frames that the callee has, and ``keys`` are valid.
    """

    def __init__(
        self, secret: bytes, session: int, rank: int, to: int, connection: int = 0, connections: int = 1
    ) -> None:
        self._secret = secret
        self._to = to
        self._transcript = b""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        claim = _HELLO.pack(_MAGIC, session, rank, to, connection, connections, nonce, b"")[:-_PROOF_BYTES]
        self.hello = claim + _hmac(secret, b"hello", claim)
        self.awaits = _CHALLENGE.size
        self.received = 0

    def take(self, message: bytes) -> bytes:
        """The answer to a message of ``awaits`` bytes, empty after the last. Raises Refused if its proof is wrong."""
        if not self._transcript:
            return self._prove(message)
        self.received, proof = _WELCOME.unpack(message)
        if not hmac.compare_digest(proof, _welcome_proof(self._secret, self._transcript, self.received)):
            raise Refused(f"rank {self._to} does not have the secret of this job")
        self.awaits = 0
        return b""

    @property
    def keys(self) -> bytes:
        return _hmac(self._secret, b"keys", self._transcript)

    def _prove(self, challenge: bytes) -> bytes:
        nonce, proof = _CHALLENGE.unpack(challenge)
        if not hmac.compare_digest(proof, _hmac(self._secret, b"callee", self.hello + nonce)):
            raise Refused(f"rank {self._to} does not have the secret of this job")
        self._transcript = self.hello + nonce
        self.awaits = _WELCOME.size
        return _hmac(self._secret, b"caller", self._transcript)


class Nonces:
    """The nonces of callers that knew the secret: the latest 16,384."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def is_new(self, nonce: bytes) -> bool:
        """True for the first caller with this nonce."""
        if nonce in self._known:
            return False
        self._known[nonce] = None
        if len(self._known) > _MOST_NONCES:
            self._known.popitem(last=False)
        return True


class Callee:
    """One connection to rank ``rank``, which waits for rank ``caller`` to make ``connections``.

    ``awaits`` is the length of the next message, 0 once the caller has proved who it is; then ``connection`` is the
    number of this connection, and ``keys`` are valid. A HELLO with a valid proof sets ``knows_secret``. With ``nonces``
    repeated HELLOs are refused.
    """

    def __init__(self, secret: bytes, session: int, rank: int, caller: int, connections: int = 1) -> None:
        self.nonces: Nonces | None = None
        self._secret = secret
        self._expected = (_MAGIC, session, caller, rank)
        self._connections = connections
        self._announced = 0
        self._transcript = b""
        self.connection = 0
        self.knows_secret = False
        self.awaits = _HELLO.size

    def take(self, message: bytes) -> bytes:
        """The answer to a message of ``awaits`` bytes, empty to a valid proof. Raises Refused for any other message.

        Raises Disagrees if the caller has proved who it is, but makes another number of connections.
        """
        if not self._transcript:
            return self._challenge(message)
        if not hmac.compare_digest(message, _hmac(self._secret, b"caller", self._transcript)):
            raise Refused("the caller does not have the secret of this job")
        if self._announced != self._connections or self.connection >= self._connections:
            raise Disagrees(f"it makes {self._announced} connections instead of {self._connections}")
        self.awaits = 0
        return b""

    def welcome(self, received: int) -> bytes:
        """The last message, with the number of frames that were received before."""
        return _WELCOME.pack(received, _welcome_proof(self._secret, self._transcript, received))

    @property
    def keys(self) -> bytes:
        return _hmac(self._secret, b"keys", self._transcript)

    def _challenge(self, hello: bytes) -> bytes:
        *who, self.connection, self._announced, nonce, proof = _HELLO.unpack(hello)
        if tuple(who) != self._expected:
            raise Refused("the caller is not the neighbour that is expected")
        if not hmac.compare_digest(proof, _hmac(self._secret, b"hello", hello[:-_PROOF_BYTES])):
            raise Refused("the caller does not have the secret of this job")
        if self.nonces is not None and not self.nonces.is_new(nonce):
            raise Refused("the caller repeats what another one has sent")
        self.knows_secret = True
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._transcript = hello + nonce
        self.awaits = _PROOF_BYTES
        return _CHALLENGE.pack(nonce, _hmac(self._secret, b"callee", self._transcript))


def _welcome_proof(secret: bytes, transcript: bytes, received: int) -> bytes:
    return _hmac(secret, b"welcome", transcript + struct.pack("<Q", received))


def _hmac(secret: bytes, label: bytes, content: bytes) -> bytes:
    return hmac.digest(secret, b"hvdlite-ring-" + label + b"\0" + content, "sha256")
