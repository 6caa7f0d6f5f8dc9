"""Questions and answers between a program and the processes of its job."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hvdlite.errors import HorovodInternalError
from hvdlite.net import calls
from hvdlite.net.calls import NobodyThere, Query, QueryServer, Unanswered, _pieces, ask
from hvdlite.net.handshake import Caller
from hvdlite.net.handshake_io import HandshakeIO
from hvdlite.net.listener import Listener
from hvdlite.net.listening import listen
from hvdlite.net.sockets import name_of
from hvdlite.rendezvous.client import Exchanges, Meeting
from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.server import RendezvousServer
from hvdlite.scope import Scope
from tests.harness import thread_ranks
from tests.harness.network import kept_port
from tests.harness.patience import PATIENCE_S

SECRET = bytes(range(32))
LIMIT = 8 << 20


def echo(call: Query, question: bytearray) -> None:
    call.answer(b"you said ", bytes(question))


@contextmanager
def serving(listener: Listener, answer: Callable[[Query, bytearray], None] = echo) -> Iterator[str]:
    server = QueryServer(listener, SECRET, LIMIT)
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            for call, question in server.turn(float("inf")):
                answer(call, question)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield name_of(listener)
    finally:
        is_over.set()
        server.wake()
        thread.join()
        server.close(1.0)


def within_host() -> Listener:
    return Listener.within_host(f"hvdlite-test-{secrets.token_hex(8)}")


def tcp() -> Listener:
    return listen("127.0.0.1", None)


def question(
    address: str, *parts: bytes, secret: bytes = SECRET, patience_s: float = PATIENCE_S, limit: int = LIMIT
) -> bytes:
    return bytes(ask(address, secret, *parts, most=limit, scope=Scope.of(patience_s)))


@pytest.mark.parametrize("listener", [within_host, tcp], ids=lambda each: each.__name__)
def test_answers_come_to_who_asked(listener: Callable[[], Listener]) -> None:
    large = os.urandom(5 << 20)
    with serving(listener()) as address:
        assert question(address) == b"you said "
        assert question(address, b"a", b"", b"b") == b"you said ab"
        said = thread_ranks(4, lambda rank: question(address, b"%d" % rank, large))
    assert said == [b"you said %d" % rank + large for rank in range(4)]


@pytest.mark.parametrize("listener", [within_host, tcp], ids=lambda each: each.__name__)
def test_who_has_another_secret_gets_no_answer_and_hears_that_it_is_that(listener: Callable[[], Listener]) -> None:
    with serving(listener()) as address:
        with pytest.raises(Unanswered, match="it hung up during the handshake, as it does on callers that do not have"):
            question(address, b"let me in", secret=bytes(32), patience_s=1.0)
        assert question(address, b"x") == b"you said x"


def test_what_an_attempt_was_told_is_not_forgotten_when_the_deadline_cuts_the_last_one_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts = iter([OSError("it hung up"), TimeoutError("timed out")])

    def attempt(address: str, secret: bytes, scope: Scope) -> tuple[socket.socket, bytes]:
        error = next(attempts)
        if isinstance(error, TimeoutError):
            time.sleep(scope.left_s)
        raise error

    monkeypatch.setattr(calls, "shake_hands", attempt)
    with pytest.raises(Unanswered, match="it hung up"):
        question("tcp://127.0.0.1:1", patience_s=1.0)


def test_what_is_too_long_is_not_read() -> None:
    with serving(within_host()) as address:
        with pytest.raises(Unanswered):
            question(address, bytes(LIMIT + 1))
        with pytest.raises(Unanswered, match=r"a message of 19 bytes is longer than 10"):
            question(address, bytes(10), limit=10)
        assert question(address, b"x") == b"you said x"


@pytest.mark.parametrize("altered", [None, 0, 8, 20, -1])
def test_a_question_that_is_altered_on_its_way_is_dropped(altered: int | None) -> None:
    with serving(within_host()) as address, socket.socket(socket.AF_UNIX) as link:
        link.settimeout(PATIENCE_S)
        link.connect("\0" + address.removeprefix("unix://@"))
        caller = Caller(SECRET, 0, 0, 0)
        link.sendall(caller.hello)
        assert HandshakeIO(link, caller, 0.0).go_on()
        message = bytearray(b"".join(_pieces(caller.keys, b"question", (b"sixteen bytes...",))))
        if altered is not None:
            message[altered] ^= 1
        link.sendall(message)
        link.shutdown(socket.SHUT_WR)
        assert (link.recv(1) == b"") == (altered is not None)


def test_nobody_who_listens_within_a_host_is_found_out_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(NobodyThere):
        question("unix://@hvdlite-test-nobody", patience_s=2 * PATIENCE_S)
    meeting = Meeting(Job.create(), "unix://@hvdlite-test-nobody")
    with pytest.raises(HorovodInternalError, match=r"rank 1 found no listener at unix://.* another network namespace"):
        Exchanges(meeting, 1, 2, Scope.of(2 * PATIENCE_S))("")
    assert time.monotonic() - began < PATIENCE_S


def test_who_does_not_listen_yet_over_tcp_is_waited_for() -> None:
    said: list[bytes] = []
    with kept_port() as port:
        early = threading.Thread(target=lambda: said.append(question(f"tcp://127.0.0.1:{port}", b"early")))
        early.start()
        with serving(listen("127.0.0.1", range(port, port + 1))):
            early.join(PATIENCE_S)
    assert said == [b"you said early"]


def test_an_answer_that_does_not_come_is_not_waited_for_longer_than_asked() -> None:
    with serving(within_host(), lambda call, question: None) as address, pytest.raises(Unanswered, match="in time"):
        question(address, patience_s=0.2)
    with (
        serving(within_host(), lambda call, question: call.hang_up()) as address,
        pytest.raises(Unanswered, match="the connection ended"),
    ):
        question(address)


def test_a_rank_that_left_before_the_others_came_may_come_again() -> None:
    """As after an init() that was interrupted: its offer is taken back with its connection."""
    job = Job.create()
    with RendezvousServer(job, 2) as server:
        meeting = Meeting(job, server.address)
        scope = Scope.of(PATIENCE_S)
        request = b'{"epoch": -1, "round": 0, "rank": 1, "size": 2, "timeout_s": 20, "offer": "first"}'
        with pytest.raises(Unanswered):
            ask(server.address, job.key("rendezvous"), request, most=99, scope=Scope.of(0.2))

        def come(rank: int) -> list[str]:
            return Exchanges(meeting, rank, 2, scope)(f"offer {rank}")

        assert thread_ranks(2, come) == [["offer 0", "offer 1"]] * 2
