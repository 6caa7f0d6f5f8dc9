"""A stranger on the network: ``stranger.py ADDRESS PORT`` connects again and again and sends what nobody asked for.

Scanners, browsers and broken peers send such things: nothing, random bytes, HTTP, greetings of ZeroMQ that are cut off,
and lengths near the limits of their fields.
"""

from __future__ import annotations

import random
import socket
import sys
import time
from contextlib import suppress

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31)
_HEAVY = 200_000


def pieces() -> list[bytes]:
    """One of each kind."""
    noise = random.randbytes(random.randrange(1, _HEAVY))
    return [
        b"",
        noise,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        _GREETING[: random.randrange(1, len(_GREETING))],
        _GREETING + noise,
        _GREETING + b"\x06" + (2**63 - 1).to_bytes(8, "big") + noise,
        (2**31 - 1).to_bytes(4, "big") + noise,
        (2**63).to_bytes(8, "little") + noise,
        b"\xff" * 64,
    ]


def main(address: str, port: str) -> None:
    while True:
        for piece in pieces():
            with suppress(OSError), socket.create_connection((address, int(port)), 1.0) as link:
                link.sendall(piece)
                link.settimeout(0.05)
                link.recv(4096)
        time.sleep(0.01)  # a flood is another fault


if __name__ == "__main__":
    main(*sys.argv[1:])
