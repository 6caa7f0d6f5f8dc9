"""Control links across hosts with processes of the job that lie, rave or come back after they were given up."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from hvdlite.control.greeting import Refused
from hvdlite.control.link import Lost
from hvdlite.control.zmqleaf import ZmqLeafLink
from hvdlite.control.zmqroot import ZmqRootLink
from hvdlite.errors import HorovodInternalError
from hvdlite.negotiation.messages import Ready
from hvdlite.negotiation.wire import Header, ProtocolError, Type, frame_of
from hvdlite.net.listening import split
from hvdlite.settings import Settings
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S
from tests.unit.links import HOSTS, SESSION, close, next_from, receive, soon, zmq_links


def answer_to(liar: ZmqLeafLink, root: ZmqRootLink, within_s: float = PATIENCE_S) -> BaseException | None:
    """Returns the answer to a process that connects to the root."""
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(liar.join, root.address, soon(within_s))
        while not joining.done():
            assert list(root.receive()) == []
            root.inbox.sleep(20)
    liar.close()
    return joining.exception()


@pytest.mark.parametrize(
    ("rank", "size", "reason"),
    [
        (1, 3, "it claims to be rank 1, and is not"),
        (1, 9, "rank 1 of 9 is not of this group of 3 ranks"),
        (7, 9, "rank 7 of 9 is not of this group of 3 ranks"),
        (0, 3, "rank 0 of 3 is not of this group"),
    ],
    ids=["another rank", "another size", "no rank", "the root"],
)
def test_who_lies_about_its_rank_is_refused_and_the_real_one_goes_on(
    rank: int, size: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    links = root, leaf, other = zmq_links()
    assert isinstance(root, ZmqRootLink)
    with caplog.at_level(logging.WARNING, "hvdlite"):
        for _ in range(3):
            liar = ZmqLeafLink(replace(member(1, "a" * size), rank=rank), Settings())
            refused = answer_to(liar, root)
            assert isinstance(refused, Refused)
            assert reason in str(refused)
    assert [reason in record.message for record in caplog.records] == [True]  # told once
    leaf.send(Ready(0, 1, ()))
    assert next_from(root, leaf, other) == (1, Ready(0, 1, ()))
    close(links)


@pytest.mark.parametrize(
    "address", ["", "digest", "digest tcp://nowhere", "digest tcp://no.such.host:1", "digest tcp://1:x"]
)
def test_an_address_without_an_endpoint_names_its_rank(address: str) -> None:
    root = ZmqRootLink(member(0, HOSTS), Settings())
    with pytest.raises(ProtocolError, match="rank 2 listens at .*, which is not an address"):
        root.accept({2: address}, soon(0.5))
    root.close()


def test_a_process_of_another_session_gets_no_answer() -> None:
    links = zmq_links()
    assert isinstance(links[0], ZmqRootLink)
    stranger = ZmqLeafLink(member(1, HOSTS), Settings())
    stranger._session += 1
    refused = answer_to(stranger, links[0], within_s=0.5)
    assert isinstance(refused, HorovodInternalError)
    assert "no answer from rank 0" in str(refused)
    close(links)


RAVINGS = {
    "nothing": b"",
    "noise": b"some bytes",
    "another session": frame_of(Header(Type.READY, 0, 0), SESSION + 1, b""),
    "another type": frame_of(Header(77, 0, 0), SESSION, b""),
    "a second hello": frame_of(Header(Type.HELLO, 0, 0), SESSION, b""),
    "a malformed message": frame_of(Header(Type.READY, 0, 0), SESSION, b"\xff" * 12),
    "a gap": frame_of(Header(Type.READY, 5, 0), SESSION, b"\0" * 12),
    "what it cannot have": frame_of(Header(Type.RECEIPT, 0, 9), SESSION, b""),
}


@pytest.mark.parametrize("frame", RAVINGS.values(), ids=RAVINGS)
def test_a_raving_rank_is_lost_alone_and_finds_itself_out(frame: bytes) -> None:
    links = root, leaf, other = zmq_links()
    assert isinstance(leaf, ZmqLeafLink)
    assert leaf._connection is not None
    leaf._connection.socket.send(frame)
    lost = next_from(root, other)
    assert isinstance(lost, Lost)
    assert lost.rank == 1
    assert lost.cause.startswith("it broke the protocol: ")
    other.send(Ready(0, 1, ()))
    assert next_from(root, other) == (2, Ready(0, 1, ()))
    with pytest.raises(Refused, match="rank 0 has given it up: it broke the protocol"):
        next_from(leaf)
    assert list(leaf.receive()) == []
    close(links)


@pytest.mark.parametrize("frame", RAVINGS.values(), ids=RAVINGS)
def test_a_raving_root_is_lost(frame: bytes) -> None:
    links = root, leaf, other = zmq_links()
    assert isinstance(root, ZmqRootLink)
    root._transmit(next(name for name, peer in root._by_name.items() if peer.rank == 1), frame)
    lost = next_from(leaf, root, other)
    assert isinstance(lost, Lost)
    assert lost.rank == 0
    assert lost.cause.startswith("it broke the protocol: ")
    root.send(Ready(0, 1, ()))
    assert next_from(other, root) == (0, Ready(0, 1, ()))
    close(links)


def test_a_rank_that_was_given_up_is_refused_when_it_comes_back() -> None:
    links = root, leaf, other = zmq_links()
    assert isinstance(leaf, ZmqLeafLink)
    assert leaf._connection is not None
    leaf._discard(leaf._connection, 0)  # as if its process had been stopped: it does not know
    leaf._connection = None
    lost = next_from(root, other)
    assert isinstance(lost, Lost)
    leaf._dial()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(next_from, leaf)
        while not waiting.done():
            assert list(root.receive()) == []
            root.inbox.sleep(20)
    with pytest.raises(Refused, match="rank 0 has given it up: its heartbeats stopped"):
        waiting.result()
    close(links)


STRANGERS = {
    "silence": b"",
    "HTTP": b"GET / HTTP/1.1\r\nHost: root\r\n\r\n",
    "ZMTP 1": b"\x01\x00",
    "ZMTP 3 without a key": b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48),
    "a length of 2^63": b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(47) + b"\x06\x80" + bytes(7),
    "noise": bytes(range(256)) * 64,
}


@pytest.mark.parametrize("words", STRANGERS.values(), ids=STRANGERS)
def test_strangers_are_dropped_and_the_links_go_on(words: bytes) -> None:
    links = root, leaf, other = zmq_links()
    assert isinstance(leaf, ZmqLeafLink)
    strangers = [socket.create_connection(split(root.address), timeout=PATIENCE_S) for _ in range(20)]  # type: ignore[attr-defined]
    strangers += [
        socket.create_connection(split(leaf._liveness_listener.endpoint), timeout=PATIENCE_S) for _ in range(20)
    ]
    for stranger in strangers:
        stranger.sendall(words)
    leaf.send(Ready(0, 1, ()))
    assert next_from(root, leaf, other) == (1, Ready(0, 1, ()))
    for stranger in strangers:
        stranger.settimeout(0.05)
        while not has_ended(stranger):
            receive(leaf)
        stranger.close()
    close(links)


def has_ended(stranger: socket.socket) -> bool:
    try:
        return not stranger.recv(4096)
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_strangers_who_speak_as_peers_do_cost_the_root_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """They say what ZeroMQ waits to hear the rest of; a rank whose connection breaks meanwhile gets in again."""
    monkeypatch.setattr("hvdlite.control.zmqlink._HANDSHAKE_MS", 3_600_000)
    links = root, leaf, other = zmq_links()
    assert isinstance(root, ZmqRootLink)
    assert isinstance(leaf, ZmqLeafLink)
    before = descriptors()
    with contextlib.ExitStack() as stack:
        for number in range(300):
            stranger = stack.enter_context(socket.create_connection(split(root.address), timeout=PATIENCE_S))
            stranger.sendall(STRANGERS["ZMTP 3 without a key"][:11])
            deadline = soon()
            while True:
                assert list(root.receive()) == []
                if descriptors() - before - number - 1 <= 100:  # libzmq's thread closes those that were shown out
                    break
                assert not deadline.is_over, "strangers stay"
                root.inbox.sleep(10)
            if number == 150:
                assert leaf._connection is not None
                leaf._part()
                leaf._dial()
        leaf.send(Ready(0, 1, ()))
        assert next_from(root, leaf, other) == (1, Ready(0, 1, ()))
    close(links)


def test_strangers_who_have_taken_all_descriptors_are_shown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not by the time-out of their handshake, within which nothing of the rank could open a file."""
    monkeypatch.setattr("hvdlite.control.zmqlink._HANDSHAKE_MS", 3_600_000)
    links = root, leaf, other = zmq_links()
    assert isinstance(root, ZmqRootLink)
    before = descriptors()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        strangers = []
        for _ in range(300):
            strangers.append(stack.enter_context(socket.create_connection(split(root.address), timeout=PATIENCE_S)))
            strangers[-1].sendall(STRANGERS["ZMTP 3 without a key"][:11])
        deadline = soon()
        while descriptors() < before + 2 * len(strangers):
            assert not deadline.is_over, "ZeroMQ did not let them in"
            time.sleep(0.01)
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 1, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                stack.callback(os.close, os.dup(0))
        assert list(root.receive()) == []
        for stranger in strangers[:200]:
            stranger.settimeout(1.0)
            while not has_ended(stranger):
                assert not deadline.is_over, "it was not shown out"
        leaf.send(Ready(0, 1, ()))
        assert next_from(root, leaf, other) == (1, Ready(0, 1, ()))
    close(links)


def test_strangers_cost_no_descriptor_before_ranks_are_waited_for() -> None:
    root = ZmqRootLink(member(0, HOSTS), Settings())
    before = descriptors()
    with contextlib.ExitStack() as stack:
        for number in range(100):
            stranger = stack.enter_context(socket.create_connection(split(root.address), timeout=PATIENCE_S))
            stranger.sendall(STRANGERS["HTTP"])
            assert descriptors() == before + number + 1
    root.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(split(root.address), timeout=PATIENCE_S)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
