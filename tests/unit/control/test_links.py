"""The control links: both ends in one process, over Unix sockets and over ZeroMQ."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hvdlite.control import unixlink
from hvdlite.control.link import ControlLink, Lost
from hvdlite.control.unixlink import UnixLink
from hvdlite.control.zmqleaf import ZmqLeafLink
from hvdlite.control.zmqroot import ZmqRootLink
from hvdlite.errors import HorovodInternalError
from hvdlite.negotiation.messages import Batch, Ready, Response, Run
from hvdlite.negotiation.wire import ProtocolError
from hvdlite.net.local_listener import LocalListener, say_hello
from hvdlite.settings import Settings
from tests.harness.crowded import crowded
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S
from tests.unit.links import LEFT, close, next_from, soon, zmq_links

BIG = Run(0, (Batch(1 << 5, tuple(Response(f"tensor {i}" * 20, "", (), i) for i in range(20_000))),))


def unix_links(hosts: str = "aaa") -> list[ControlLink]:
    root, *leaves = links = [UnixLink(member(rank, hosts), Settings()) for rank in range(len(hosts))]
    with LocalListener(member(0, hosts).key_for("listener")) as listener:
        for leaf in leaves:
            leaf.dial(listener.address, soon())
        root.accept(listener, soon())
    return [*links]


@pytest.fixture(params=[unix_links, zmq_links])
def links(request: pytest.FixtureRequest) -> Iterator[list[ControlLink]]:
    links = request.param()
    yield links
    close(links)


def test_messages_go_up_with_their_sender_and_down_to_all(links: list[ControlLink]) -> None:
    root, *leaves = links
    for rank, leaf in enumerate(leaves, 1):
        leaf.send(Ready(0, rank, ()))
    assert dict(next_from(root) for _ in leaves) == {1: Ready(0, 1, ()), 2: Ready(0, 2, ())}
    root.send(LEFT)
    assert [next_from(leaf) for leaf in leaves] == [(0, LEFT), (0, LEFT)]


def test_large_messages_in_both_directions_do_not_wait_for_each_other(links: list[ControlLink]) -> None:
    root, leaf, _ = links
    for _ in range(3):
        root.send(BIG)
        leaf.send(BIG)
    came: dict[ControlLink, list[Any]] = {root: [], leaf: []}
    deadline = soon()
    while min(map(len, came.values())) < 3 and not deadline.is_over:
        for link, items in came.items():
            items.extend(link.receive())
    assert came == {root: [(1, BIG)] * 3, leaf: [(0, BIG)] * 3}


def test_what_a_peer_sent_last_comes_before_its_loss(links: list[ControlLink]) -> None:
    root, leaf, other = links
    leaf.send(LEFT)
    with ThreadPoolExecutor() as pool:
        pool.submit(leaf.close)
        assert next_from(root) == (1, LEFT)
        lost = next_from(root)
    assert isinstance(lost, Lost)
    assert lost.rank == 1
    root.send(LEFT)  # to those who are left
    assert next_from(other) == (0, LEFT)
    root.close()
    assert isinstance(next_from(other), Lost)
    other.send(LEFT)  # to nobody, without an error
    links[:] = [other]


def test_a_link_that_closes_waits_until_a_long_message_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unixlink, "_CLOSE_S", PATIENCE_S)
    with crowded(), ThreadPoolExecutor() as pool:
        root, leaf = unix_links("aa")
        root.send(BIG)
        closing = pool.submit(root.close)
        assert next_from(leaf) == (0, BIG)
        closing.result()
        leaf.close()


def test_the_wake_ends_the_sleep(links: list[ControlLink]) -> None:
    root = links[0]
    timer = threading.Timer(0.05, root.inbox.wake.set)
    timer.start()
    began = time.monotonic()
    root.inbox.sleep(1000 * PATIENCE_S)
    assert list(root.receive()) == []
    assert time.monotonic() - began < PATIENCE_S
    timer.join()


def test_a_frame_of_another_session_is_refused() -> None:
    leaf, root = (UnixLink(member(rank, "aa"), Settings()) for rank in (1, 0))
    leaf._session += 1
    with LocalListener(member(0, "aa").key_for("listener")) as listener:
        leaf.dial(listener.address, soon())
        root.accept(listener, soon())
    leaf.send(LEFT)
    with pytest.raises(ProtocolError, match="session"):
        next_from(root)
    leaf.close()
    root.close()


def test_strangers_are_dropped_and_the_missing_rank_is_named() -> None:
    token = member(0, "aaa").key_for("listener")
    leaf, root = (UnixLink(member(rank, "aaa"), Settings()) for rank in (1, 0))
    with LocalListener(token) as listener:
        strangers = [
            say_hello(listener.address, b"wrong", b"1", soon()),
            say_hello(listener.address, token, b"9", soon()),
        ]
        leaf.dial(listener.address, soon())
        with pytest.raises(HorovodInternalError, match=r"rank\(s\) 2 did not connect"):
            root.accept(listener, soon(0.3))
    root.close()
    for stranger in strangers:
        assert stranger.recv(10) == b""
        stranger.close()
    leaf.close()


def test_a_key_of_another_job_gets_nowhere() -> None:
    root = ZmqRootLink(member(0, "ab"), Settings())
    leaf = ZmqLeafLink(member(1, "ab", key=bytes(32)), Settings())
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(leaf.join, root.address, soon(0.5))
        with pytest.raises(HorovodInternalError, match=r"rank\(s\) 1 did not connect"):
            root.accept({1: leaf.address}, soon(0.5))
        with pytest.raises(HorovodInternalError, match="no answer from rank 0 at tcp://127.0.0.1:"):
            joining.result()
    leaf.close()
    root.close()
