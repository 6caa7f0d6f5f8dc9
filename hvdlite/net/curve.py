"""ZeroMQ sockets that admit only holders of a group's key (CURVE)."""

from __future__ import annotations

import hashlib

import zmq
from zmq.utils import z85


def serve(socket: zmq.Socket[bytes], key: bytes) -> None:
    """Makes ``socket`` accept only peers that hold ``key``, 32 bytes."""
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = _pair(key, "server")


def dial(socket: zmq.Socket[bytes], key: bytes) -> None:
    """Makes ``socket`` talk only to a server that holds ``key``."""
    socket.curve_serverkey = _pair(key, "server")[0]
    socket.curve_publickey, socket.curve_secretkey = _pair(key, "client")


def _pair(key: bytes, role: str) -> tuple[bytes, bytes]:
    secret = z85.encode(hashlib.blake2b(role.encode(), key=key, digest_size=32).digest())
    return zmq.curve_public(secret), secret
