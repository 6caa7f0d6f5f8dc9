"""The options of a ring's sockets."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from hvdlite.net import sockets
from hvdlite.net.listening import LOOPBACK


@pytest.fixture
def link() -> Iterator[socket.socket]:
    """A connection over the loopback, where a round trip takes microseconds."""
    with closing(sockets.listen(LOOPBACK, None)) as listener, closing(sockets.dial(sockets.name_of(listener))) as link:
        assert select.select((), (link,), (), 5.0)[1]
        yield link


def test_a_short_line_is_taken_from_bbr(link: socket.socket) -> None:
    choose(link, "bbr")
    sockets.leave_bbr(link)
    assert chosen(link) == "reno"


def test_a_long_line_stays_with_bbr(link: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(link, "bbr")
    monkeypatch.setattr(sockets, "_SHORT_LINE_US", 0)
    sockets.leave_bbr(link)
    assert chosen(link) == "bbr"


@pytest.mark.parametrize("algorithm", ["cubic", "reno"])
def test_what_does_not_pace_stays(link: socket.socket, algorithm: str) -> None:
    choose(link, algorithm)
    sockets.leave_bbr(link)
    assert chosen(link) == algorithm


def test_within_a_host_there_is_nothing_to_choose() -> None:
    with closing(sockets.listen(None, None)) as listener, closing(sockets.dial(sockets.name_of(listener))) as link:
        sockets.leave_bbr(link)


def choose(link: socket.socket, algorithm: str) -> None:
    try:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
    except OSError as error:
        pytest.skip(f"needs a kernel that gives {algorithm}: {error.strerror}")


def chosen(link: socket.socket) -> str:
    return link.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
