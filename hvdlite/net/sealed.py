"""Frames that are encrypted and authenticated, for one connection whose ends have proved who they are.

A frame is a header with the length of the payload and a kind, the encrypted payload, and a tag that covers both. The
header is not encrypted. The cipher is AES-128-GCM of the OpenSSL that this Python uses, as in the ring
(``native/ring/link/cipher.h``). Each direction has a key from the handshake of this connection, and the nonce is the
number of the frame in its direction. So a frame that is altered, repeated, missing or out of place ends the connection.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

KEYS_BYTES: Final = 32  # of both directions, as `hvdlite.net.handshake` makes them
_HEADER: Final = struct.Struct("!IB")
_NONCE: Final = struct.Struct("<4xQ")
_TAG_BYTES: Final = 16
_GET_TAG, _SET_TAG = 0x10, 0x11  # for EVP_CIPHER_CTX_ctrl


class NoLibcrypto(Exception):
    """This Python has no OpenSSL in a shared library; the text is the message."""

    def __init__(self) -> None:
        super().__init__(
            "this Python has no OpenSSL 1.1 or newer in a shared library, which its module _hashlib uses on most "
            "systems"
        )


class Unsealed(ValueError):
    """The data is not what the other end has sealed; the connection is useless then."""


def path_of_libcrypto() -> bytes:
    """A library that links to the OpenSSL of this Python. Raises NoLibcrypto if there is none."""
    try:
        path = importlib.import_module("_hashlib").__file__
    except ImportError:
        path = None
    if path is None:  # compiled into the interpreter
        raise NoLibcrypto
    return os.fsencode(path)


class Sealer:
    """One end of a connection. It seals frames with ``own_key``, and opens the peer's with ``peers_key``.

    Payloads of more than ``limit`` bytes are refused before they are stored. Raises NoLibcrypto.
    """

    def __init__(self, own_key: bytes, peers_key: bytes, limit: int) -> None:
        self._sent, self._received, self._limit = 0, 0, limit
        self._sealing, self._opening = _Context(own_key, "Encrypt"), _Context(peers_key, "Decrypt")
        self._buffer = bytearray()

    def seal(self, kind: int, payload: bytes) -> bytes:
        """The next frame to send."""
        header = _HEADER.pack(len(payload), kind)
        sealed, tag = self._sealing.seal(_NONCE.pack(self._sent), header, payload)
        self._sent += 1
        return header + sealed + tag

    def open(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yields kind and payload of the frames that ``data`` completes. Raises Unsealed at the first invalid one."""
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            length, kind = _HEADER.unpack_from(self._buffer)
            if length > self._limit:
                raise Unsealed(f"a frame of {length} bytes is longer than {self._limit}")
            end = _HEADER.size + length + _TAG_BYTES
            if len(self._buffer) < end:
                return
            header, body = bytes(self._buffer[: _HEADER.size]), bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            payload = self._opening.open(_NONCE.pack(self._received), header, body[:length], body[length:])
            self._received += 1
            yield kind, payload


@cache
def _libcrypto() -> Any:
    try:
        library = ctypes.CDLL(os.fsdecode(path_of_libcrypto()))
        library.EVP_aes_128_gcm.restype = ctypes.c_void_p
        library.EVP_CIPHER_CTX_new.restype = ctypes.c_void_p
        library.EVP_CIPHER_CTX_free.argtypes = [ctypes.c_void_p]
        library.EVP_CIPHER_CTX_free.restype = None
        library.EVP_CIPHER_CTX_ctrl.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
        for name in ("Encrypt", "Decrypt"):
            getattr(library, f"EVP_{name}Init_ex").argtypes = [*[ctypes.c_void_p] * 3, *[ctypes.c_char_p] * 2]
            length = ctypes.POINTER(ctypes.c_int)
            getattr(library, f"EVP_{name}Update").argtypes = [
                ctypes.c_void_p, ctypes.c_void_p, length, ctypes.c_char_p, ctypes.c_int,
            ]  # fmt: skip
            getattr(library, f"EVP_{name}Final_ex").argtypes = [ctypes.c_void_p, ctypes.c_void_p, length]
    except (OSError, AttributeError):
        raise NoLibcrypto from None
    return library


class _Context:
    """A cipher with its key, for one ``direction``: Encrypt or Decrypt."""

    def __init__(self, key: bytes, direction: str) -> None:
        self._library = library = _libcrypto()
        self._free = library.EVP_CIPHER_CTX_free
        self._init, self._update, self._final = (
            getattr(library, f"EVP_{direction}{name}") for name in ("Init_ex", "Update", "Final_ex")
        )
        self._count = ctypes.c_int()
        self._context = library.EVP_CIPHER_CTX_new()
        if not self._context or self._init(self._context, library.EVP_aes_128_gcm(), None, key, None) != 1:
            raise MemoryError("no memory for a cipher")

    def __del__(self) -> None:
        if context := getattr(self, "_context", None):
            self._free(context)

    def seal(self, nonce: bytes, header: bytes, payload: bytes) -> tuple[bytes, bytes]:
        """The payload encrypted, and the tag."""
        sealed, tag = ctypes.create_string_buffer(len(payload) or 1), ctypes.create_string_buffer(_TAG_BYTES)
        is_done = self._run(nonce, header, payload, sealed)
        if not (is_done and self._finish(tag) and self._control(_GET_TAG, tag)):
            raise MemoryError("OpenSSL cannot encrypt")
        return sealed.raw[: len(payload)], tag.raw

    def open(self, nonce: bytes, header: bytes, sealed: bytes, tag: bytes) -> bytes:
        """The payload. Raises Unsealed if anything was altered."""
        payload, expected = ctypes.create_string_buffer(len(sealed) or 1), ctypes.create_string_buffer(tag, _TAG_BYTES)
        is_done = self._run(nonce, header, sealed, payload) and self._control(_SET_TAG, expected)
        if not (is_done and self._finish(ctypes.create_string_buffer(_TAG_BYTES))):
            raise Unsealed("a frame was altered on its way")
        return payload.raw[: len(sealed)]

    def _run(self, nonce: bytes, header: bytes, data: bytes, to: Any) -> bool:
        count = ctypes.byref(self._count)
        return (
            self._init(self._context, None, None, None, nonce) == 1
            and self._update(self._context, None, count, header, len(header)) == 1
            and (not data or self._update(self._context, to, count, data, len(data)) == 1)
        )

    def _control(self, what: int, tag: Any) -> bool:
        return bool(self._library.EVP_CIPHER_CTX_ctrl(self._context, what, _TAG_BYTES, tag) == 1)

    def _finish(self, rest: Any) -> bool:
        return bool(self._final(self._context, rest, ctypes.byref(self._count)) == 1)
