"""The name and the key of one job, and the keys derived from it.

Ranks get the job's random key only through their environment, or on one host from rank 0 through a Unix socket. All
other keys are derived from it with BLAKE2b, one for each purpose, so that one of them reveals no other.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Job:
    """A job's random ``name`` and its ``secret``, 64 hexadecimal digits that are never printed."""

    name: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != 64 or not set(self.secret) <= set("0123456789abcdef"):
            raise ValueError("HVDLITE_SECRET must be 64 hexadecimal digits, as 'openssl rand -hex 32' prints them")

    @classmethod
    def create(cls) -> Job:
        """A new job with a random name and key."""
        return cls(secrets.token_hex(8), secrets.token_hex(32))

    def key(self, purpose: str) -> bytes:
        """Derives 32 bytes for one purpose."""
        return hashlib.blake2b(purpose.encode(), key=bytes.fromhex(self.secret), digest_size=32).digest()
