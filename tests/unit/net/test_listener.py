"""Access to the listeners of a host's ranks, also when descriptors run out."""

from __future__ import annotations

import os
import resource
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

import pytest

from hvdlite.launcher.agent.tunnel import Tunnel
from hvdlite.launcher.stream.loop import Loop
from hvdlite.launcher.stream.messages import Open
from hvdlite.net.listener import Listener, peer_of
from hvdlite.net.listening import listen
from hvdlite.net.local_listener import LocalListener, say_hello
from hvdlite.scope import Scope
from tests.harness.patience import PATIENCE_S
from tests.harness.users import LARGE, NOBODY, in_child, needs_root


def a_name() -> str:
    return f"hvdlite-test-{secrets.token_hex(8)}"


def through_a_listener() -> int:
    name = a_name()
    with closing(Listener.within_host(name)) as listener, socket.socket(socket.AF_UNIX) as caller:
        caller.connect("\0" + name)
        link = listener.accept()
        assert link is not None
        with link:
            return peer_of(link).uid


def through_a_door() -> int:
    with (
        LocalListener(b"token") as listener,
        say_hello(listener.address, b"token", b"", Scope.of(PATIENCE_S)) as link,
    ):
        peer, _ = next(listener.admit(Scope.of(PATIENCE_S)))
        peer.close()
        return peer_of(link).uid


def through_a_tunnel() -> int:
    """The agent's end opens a channel, and hvdrun's connects it to the service."""
    said: list[object] = []
    with closing(Loop()) as loop, socket.socket(socket.AF_UNIX) as caller, socket.socket(socket.AF_UNIX) as service:
        near, far, agents, services = Tunnel(loop, said.append), Tunnel(loop, said.append), a_name(), a_name()
        service.bind("\0" + services)
        service.listen()
        near.listen(agents, "service")
        caller.connect("\0" + agents)
        loop.turn(time.monotonic() + 10)
        far.open(0, services)
        with service.accept()[0] as link:
            uid = peer_of(link).uid
        near.shut()
        far.shut()
    assert [type(message) for message in said] == [Open]
    return uid


@pytest.mark.parametrize("way", [through_a_listener, through_a_door, through_a_tunnel], ids=lambda way: way.__name__)
@pytest.mark.parametrize("uid", [0, NOBODY, LARGE])
@needs_root
def test_a_user_of_any_number_is_let_in_by_itself(way: Callable[[], int], uid: int) -> None:
    assert in_child(way, uid=uid) == uid


@needs_root
def test_other_users_are_closed_at_once_and_one_that_waits_behind_them_comes_in() -> None:
    name = a_name()
    with closing(Listener.within_host(name)) as listener, ExitStack() as stack:
        for _ in range(200):
            stranger = stack.enter_context(socket.socket(socket.AF_UNIX))
            os.seteuid(NOBODY)
            try:
                stranger.connect("\0" + name)
            finally:
                os.seteuid(0)
        stack.enter_context(socket.socket(socket.AF_UNIX)).connect("\0" + name)
        before, links = descriptors(), list[socket.socket]()
        for _ in range(10):
            if link := listener.accept():
                links.append(stack.enter_context(link))
        assert descriptors() == before + 1
        assert [peer_of(link).uid for link in links] == [0]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def at_the_limit(open_listener: Callable[[], Listener]) -> list[str]:
    """Returns the fate of callers while this process has no descriptor left, and once it has."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    seen, hoard = [], list[int]()
    with closing(open_listener()) as listener, ExitStack() as stack:
        where = listener.name()
        callers = [
            stack.enter_context(socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET))
            for _ in range(5)
        ]
        with suppress(OSError):
            while True:
                hoard.append(os.dup(0))
        for caller in callers[:4]:
            caller.settimeout(PATIENCE_S)
            caller.connect("\0" + where if isinstance(where, str) else where)
            caller.send(b"x")
            assert listener.accept() is None
            try:
                seen.append("hung up" if caller.recv(1) == b"" else "answered")
            except ConnectionResetError:
                seen.append("hung up")
        for descriptor in hoard:
            os.close(descriptor)
        callers[4].connect("\0" + where if isinstance(where, str) else where)
        callers[4].send(b"x")
        link = listener.accept()
        seen.append("let in" if link else "left out")
        if link:
            link.close()
    return seen


@pytest.mark.parametrize("is_tcp", [False, True])
def test_without_a_descriptor_callers_are_turned_away_and_do_not_stay_in_the_queue(is_tcp: bool) -> None:
    def listener() -> Listener:
        return listen("127.0.0.1", None) if is_tcp else Listener.within_host(a_name())

    assert in_child(at_the_limit, listener) == ["hung up"] * 4 + ["let in"]


def test_over_tcp_the_kernel_keeps_who_says_nothing() -> None:
    with closing(listen("127.0.0.1", None)) as listener, ExitStack() as stack:
        where = listener.name()
        assert isinstance(where, tuple)
        for _ in range(20):
            stack.enter_context(socket.create_connection(where))
        assert listener.accept() is None
        stack.enter_context(socket.create_connection(where)).send(b"hello")
        link = listener.accept()
        assert link is not None
        with link:
            assert link.recv(5) == b"hello"
