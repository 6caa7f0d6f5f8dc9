"""Calls: a question and its answer over one connection, between a program and the processes of its job.

Both sides prove that they know a secret (`hvdlite.net.handshake`). A message is its length, its bytes and their keyed
hash, with a key of this connection, so nothing that a stranger sends is interpreted. Nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import select
import socket
import struct
import time
from collections.abc import Generator, Iterator
from typing import Any, Final

from hvdlite.net.handshake import Callee, Caller, Refused
from hvdlite.net.handshake_io import HandshakeIO
from hvdlite.net.listener import UNIX, Listener, call_within_host, limit
from hvdlite.net.lobby import Lobby
from hvdlite.net.poll import ENDED, Poller, comes, wait_readable
from hvdlite.net.sockets import parse, prepare
from hvdlite.scope import Scope

_LENGTH: Final = struct.Struct("<Q")
_HASH_BYTES: Final = 32
_PIECE_BYTES: Final = 1 << 20
_HANDSHAKE_S: Final = 5.0
_RETRY_S: Final = 0.05
_QUESTION: Final = b"question"
_ANSWER: Final = b"answer"


class Unanswered(Exception):
    """No answer came; the text is the reason."""


class NobodyThere(Unanswered):
    """An address within this host has no listener."""


class Query:
    """One question to a `QueryServer`. ``has_ended`` is set once the caller is gone."""

    def __init__(self, poller: Poller, sock: socket.socket, keys: bytes) -> None:
        self._poller = poller
        self._socket = sock
        self._keys = keys
        self._pieces: Iterator[memoryview] = iter(())
        self._piece = memoryview(b"")
        self.is_answered = False
        self.has_ended = False

    def answer(self, *parts: bytes) -> None:
        """Sends ``parts`` as one message: as much as the connection takes now, the rest in later turns."""
        self.is_answered = True
        if not self.has_ended:
            self._pieces = _pieces(self._keys, _ANSWER, parts)
            self._piece = next(self._pieces)
            self._poller.set(self._socket, select.POLLOUT, self._send)
            self._send(0)

    def hang_up(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._poller.close(self._socket)

    def _send(self, events: int) -> None:
        try:
            while self._piece:
                self._piece = self._piece[self._socket.send(self._piece, socket.MSG_NOSIGNAL) :]
                self._piece = self._piece or next(self._pieces, self._piece)
        except BlockingIOError:
            return
        except OSError:
            pass
        self.hang_up()


class QueryServer:
    """Takes over ``listener`` and admits callers that know ``secret``. Questions have ``limit`` bytes at most.

    For one thread, which calls `turn`; any thread may call `wake`. Others may add descriptors to ``poller``.
    """

    def __init__(self, listener: Listener, secret: bytes, limit: int) -> None:
        self.poller = Poller()
        self._limit = limit
        self._lobby = Lobby(self.poller, listener, lambda: Callee(secret, 0, 0, 0), self._admit)
        self._queries: set[Query] = set()
        self._asked: list[tuple[Query, bytearray]] = []
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.poller.set(self._wake, select.POLLIN, lambda _: self._wake_up())

    def turn(self, until: float) -> list[tuple[Query, bytearray]]:
        """Serves until something happens, or until ``until`` (monotonic). Returns new questions."""
        self._lobby.tick(time.monotonic())
        self.poller.sleep(min(until, self._lobby.due))
        self._queries = {query for query in self._queries if not query.has_ended}
        asked, self._asked = self._asked, []
        return asked

    def wake(self) -> None:
        """Makes `turn` return."""
        os.eventfd_write(self._wake, 1)

    def close(self, linger_s: float) -> None:
        """Ends all connections; answers in progress get ``linger_s``."""
        self._lobby.close()
        lingering = Scope.of(linger_s)
        while any(query.is_answered for query in self._queries) and not lingering.is_over:
            self.turn(lingering.deadline)
        for query in self._queries:
            query.hang_up()
        os.close(self._wake)

    def _wake_up(self) -> None:
        os.eventfd_read(self._wake)

    def _admit(self, handshake: HandshakeIO[Callee]) -> None:
        handshake.send(handshake.party.welcome(0))
        prepare(handshake.sock)
        keys = handshake.party.keys
        query = Query(self.poller, handshake.sock, keys)
        self._queries.add(query)
        question = _message(keys, _QUESTION, self._limit)
        room = [next(question)]
        self.poller.set(handshake.sock, select.POLLIN, lambda _: self._listen_to(query, handshake.sock, question, room))

    def _listen_to(
        self, query: Query, sock: socket.socket, question: Generator[memoryview, int, bytearray], room: list[memoryview]
    ) -> None:
        try:
            if not (count := sock.recv_into(room[0])):
                raise ConnectionResetError
            room[0] = question.send(count)
        except BlockingIOError:
            return
        except StopIteration as whole:
            self.poller.set(sock, ENDED, lambda _: query.hang_up())
            self._asked.append((query, whole.value))
        except (Refused, OSError):
            query.hang_up()


class Pending:
    """A question that was sent at ``asked_at`` (monotonic). Closing it withdraws the question."""

    def __init__(self, sock: socket.socket, keys: bytes, limit: int, asked_at: float) -> None:
        self.asked_at = asked_at
        self._socket = sock
        self._keys = keys
        self._limit = limit

    def __enter__(self) -> Pending:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Withdraws the question. May be called twice."""
        self._socket.close()

    def has_come(self) -> bool:
        """True if an answer has begun to arrive, or the connection has ended, so that `answer` will not wait long."""
        return comes(self._socket, select.POLLIN)

    def answer(self, scope: Scope) -> bytearray:
        """Waits for the answer. Raises Unanswered."""
        sock = self._socket
        try:
            answer = _message(self._keys, _ANSWER, self._limit)
            room = next(answer)
            while True:
                wait_readable(sock, scope)
                limit(sock, scope)
                if not (count := sock.recv_into(room)):
                    raise Unanswered("the connection ended")
                room = answer.send(count)
        except StopIteration as whole:
            result: bytearray = whole.value
            return result
        except TimeoutError:
            raise Unanswered("no answer in time") from None
        except (Refused, OSError) as error:
            raise Unanswered(str(error)) from None


def put(address: str, secret: bytes, *question: bytes, most: int, scope: Scope, grace_s: float = 0.0) -> Pending:
    """Sends a question to the server at ``address``, which knows ``secret``. An answer has ``most`` bytes at most.

    Raises Unanswered if no server admits this process before the end of ``scope``, or if the question is not sent
    ``grace_s`` later. Raises NobodyThere at once if an address within this host has no listener.
    """
    sock, keys = _connect(address, secret, scope)
    asked_at, sending = time.monotonic(), scope.later(grace_s)
    try:
        for piece in _pieces(keys, _QUESTION, question):
            limit(sock, sending)
            sock.sendall(piece)
    except OSError as error:
        sock.close()
        raise Unanswered("no answer in time" if isinstance(error, TimeoutError) else str(error)) from None
    except BaseException:
        sock.close()
        raise
    return Pending(sock, keys, most, asked_at)


def ask(address: str, secret: bytes, *question: bytes, most: int, scope: Scope) -> bytearray:
    """Like `put`, but waits for the answer. Raises Unanswered."""
    with put(address, secret, *question, most=most, scope=scope) as pending:
        return pending.answer(scope)


def _connect(address: str, secret: bytes, scope: Scope) -> tuple[socket.socket, bytes]:
    cause: Exception | None = None
    while True:
        try:
            return shake_hands(address, secret, Scope.of(_HANDSHAKE_S, scope))
        except (Refused, OSError) as error:
            if isinstance(error, ConnectionRefusedError) and address.startswith(UNIX):
                raise NobodyThere("nobody listens there") from None
            if cause is None or not isinstance(error, TimeoutError):  # the deadline may have cut the last attempt short
                cause = error
            if scope.left_s <= _RETRY_S:
                raise Unanswered(getattr(cause, "strerror", None) or str(cause)) from None
        time.sleep(min(_RETRY_S, scope.pause_s()))


def shake_hands(address: str, secret: bytes, scope: Scope) -> tuple[socket.socket, bytes]:
    """A connection to the server at ``address``, which knows ``secret``, and its keys (`hvdlite.net.handshake`).

    Raises Refused, or OSError if there is no answer before the end of ``scope``.
    """
    family, where = parse(address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        prepare(sock)
        if family != socket.AF_UNIX:
            limit(sock, scope)
            sock.connect(where)
        elif not call_within_host(sock, address.removeprefix(UNIX), scope).is_own:
            raise Unanswered("another user listens there")
        caller = Caller(secret, 0, 0, 0)
        sock.sendall(caller.hello)
        handshake = HandshakeIO(sock, caller, scope.deadline)
        while not handshake.go_on():
            wait_readable(sock, scope)
        return sock, caller.keys
    except BaseException:
        sock.close()
        raise


def _pieces(keys: bytes, kind: bytes, parts: tuple[bytes, ...]) -> Iterator[memoryview]:
    """Yields a message in pieces, and hashes each as it is yielded."""
    digest = hashlib.blake2b(key=keys, person=kind, digest_size=_HASH_BYTES)
    for part in (_LENGTH.pack(sum(map(len, parts))), *parts):
        for start in range(0, len(part), _PIECE_BYTES):
            piece = memoryview(part)[start : start + _PIECE_BYTES]
            digest.update(piece)
            yield piece
    yield memoryview(digest.digest())


def _message(keys: bytes, kind: bytes, limit: int) -> Generator[memoryview, int, bytearray]:
    """Receives a message: yields a buffer to fill, and is sent the number of bytes that were filled.

    Raises Refused if the message is too long, or not the peer's.
    """
    digest = hashlib.blake2b(key=keys, person=kind, digest_size=_HASH_BYTES)
    (length,) = _LENGTH.unpack((yield from _filled(_LENGTH.size, digest)))
    if length > limit:
        raise Refused(f"a message of {length} bytes is longer than {limit}")
    message = yield from _filled(length, digest)
    if not hmac.compare_digest((yield from _filled(_HASH_BYTES, None)), digest.digest()):
        raise Refused("a message was altered on its way")
    return message


def _filled(size: int, digest: Any) -> Generator[memoryview, int, bytearray]:
    buffer, came = bytearray(size), 0
    while came < size:
        room = memoryview(buffer)[came : came + _PIECE_BYTES]
        count = yield room
        if digest is not None:
            digest.update(room[:count])
        came += count
    return buffer
