"""First bytes that a stranger might send."""

from __future__ import annotations

import pickle
import random
import struct
from pathlib import Path

_NULL_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_CURVE_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
_HELLO_BYTES = 200  # of a CURVE client


class Canary:
    """Writes ``path`` if anybody unpickles it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[Path, str]]:
        return Path.write_text, (self._path, "somebody unpickled what came from the network")


def openings(canary: Path) -> dict[str, bytes]:
    """By name. What unpickles one of them writes ``canary``."""
    pickled = pickle.dumps(Canary(canary))
    noise = random.Random(7)
    return {
        "HTTP": b"GET / HTTP/1.1\r\nHost: rank0\r\nContent-Length: 99999999999\r\n\r\n",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32) + b"\xff" * 450,
        "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
        "ZMTP 1.0": b"\x01\x00" + b"\x05\x00data" * 10,
        "ZMTP 2.0": b"\xff" + bytes(8) + b"\x01\x01\x06\x00\x00" + b"\x00\x05hello" * 10,
        "ZMTP without a key": _NULL_GREETING + b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER",
        "CURVE with a frame of 2**63 - 1 bytes": _CURVE_GREETING + b"\x06" + struct.pack(">Q", 2**63 - 1) + bytes(4096),
        "CURVE with a wrong hello": _CURVE_GREETING + b"\x04\xc8\x05HELLO" + noise.randbytes(_HELLO_BYTES - 6),
        "length -1": b"\xff" * 4096,
        "length 2**31 - 1, big endian": struct.pack(">I", 2**31 - 1) + bytes(4096),
        "length 2**31 - 1, little endian": struct.pack("<I", 2**31 - 1) + bytes(4096),
        "nested counts of 2**32": struct.pack("<QQQQ", *[2**32] * 4) * 64,
        "a pickle": pickled,
        "a pickle behind its length": struct.pack(">I", len(pickled)) + pickled,
        "a pickle in a ZMTP frame": _NULL_GREETING + b"\x00" + bytes([len(pickled) & 0xFF]) + pickled,
        "noise": noise.randbytes(10_000),
        "zeros": bytes(10_000),
        "one byte": b"\x00",
        "nothing": b"",
    }
