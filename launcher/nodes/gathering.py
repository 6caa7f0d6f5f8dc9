"""Node 0's side of a job of nodes: waits for all other nodes, and keeps the connections that they make.

Callers without the key are limited like all strangers (`hvdlite.net.lobby`). A caller with the key introduces itself.
It is welcome if it is a node that is missing, and otherwise receives the reason why it is refused. A thread goes on
refusing callers until the job is over, so that a node that is started again learns that the job has begun without it.
"""

from __future__ import annotations

import errno
import re
import select
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from hvdlite.blackbox.format import printable
from hvdlite.errors import LaunchError
from hvdlite.net.handshake import Callee
from hvdlite.net.handshake_io import HandshakeIO
from hvdlite.net.listener import Listener
from hvdlite.net.listening import listen_at
from hvdlite.net.lobby import Lobby
from hvdlite.net.poll import Poller
from hvdlite.net.sealed import path_of_libcrypto
from hvdlite.net.wake import Wake
from hvdlite.scope import Scope

from ..decisions.endings import Ending, ending_of
from ..stream.fields import parse_fields, read, shown
from ..stream.frames import FrameError
from ..stream.hello import Hello
from ..where.hosts import Host, is_local, is_own_address
from .connection import NodeConnection, farewell
from .place import NodePlace
from .records import Channel, Introduction, Record, key_of

_INTRODUCTION_S: Final = 5.0
_QUIET_S: Final = 2.0  # of silence, before hvdrun shows for whom it waits
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]")
_LOOPBACK: Final = {"localhost": "127.0.0.1"}
_BEGUN: Final = "the job has begun already, and no node can join it again; start it again on all nodes"


class Gathering:
    """Listens for the other nodes of ``place``; ``say`` shows one line to the user.

    Raises LaunchError if it cannot listen, ValueError for a bad ``secret``, and NoLibcrypto.
    """

    def __init__(self, place: NodePlace, secret: str, say: Callable[[str], None]) -> None:
        self._place, self._say = place, say
        self._own = Hello.describe()
        self._by_node: dict[int, NodeConnection] = {}
        self._callers: dict[Channel, float] = {}  # who have the key and are to introduce themselves, and until when
        self._error: LaunchError | None = None
        self._has_begun = False
        self._thread: threading.Thread | None = None
        key = key_of(secret)
        path_of_libcrypto()  # no node could be let in
        listener = _listen(place)
        self._poller, self._wake = Poller(), Wake()
        self._poller.set(self._wake.fd, select.POLLIN, lambda _: self._wake.clear())
        self._lobby = Lobby(self._poller, listener, lambda: Callee(key, 0, 0, 0), self._admit)

    @property
    def name(self) -> str:
        """This host's own name in the job."""
        return self._own.hostname or "localhost"

    @property
    def ways(self) -> dict[str, NodeConnection]:
        """The other nodes by name, once all have come."""
        return {node.host: node for _, node in sorted(self._by_node.items())}

    def hosts(self) -> tuple[Host, ...]:
        """All nodes in their order."""
        return tuple(Host(name) for name in (self.name, *self.ways))

    def hosts_with_slots(self, own: int | None) -> tuple[Host, ...]:
        """The same with as many slots as the user of each has given it, ``own`` for this one."""
        others = (Host(name, node.introduction.slots or None) for name, node in self.ways.items())
        return (Host(self.name, own), *others)

    def wait(self, timeout_s: float) -> None:
        """Waits for all nodes. Raises LaunchError that names the missing ones, or says why the job cannot start."""
        begun = time.monotonic()
        report_at = begun + _QUIET_S
        while missing := [str(node) for node in range(1, self._place.count) if node not in self._by_node]:
            if self._error:
                raise self._error
            now = time.monotonic()
            if now >= begun + timeout_s:
                raise LaunchError(self._nobody_came(missing, timeout_s))
            if now >= report_at:
                report_at = float("inf")
                self._say(f"waiting for {_nodes(missing)} of {self._place.count} at port {self._place.master.port}")
            self._turn(min(report_at, begun + timeout_s))
        for node in self._by_node.values():
            self._poller.let_go(node.sock)
        self._name_nodes()
        self._has_begun = True
        self._thread = threading.Thread(target=self._refuse_others, name="hvdrun nodes", daemon=True)
        self._thread.start()

    def __enter__(self) -> Gathering:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Sends the nodes the end of the job, if they do not know it yet, and waits for theirs."""
        code, text = ending_of(error) if error else Ending(0)
        if code > 128 and not text:
            text = f"it got {signal.Signals(code - 128).name}"
        for node in self._by_node.values():
            node.conclude(code, text)
            node.hang_up()
        scope = farewell()
        for node in self._by_node.values():
            node.part(scope)
        if self._thread:
            thread, self._thread = self._thread, None
            self._wake.set()
            thread.join()
        for channel in list(self._callers):
            self._dismiss(channel)
        self._lobby.close()
        self._poller.let_go(self._wake.fd)
        self._wake.close()

    def _turn(self, until: float) -> None:
        now = time.monotonic()
        self._lobby.tick(now)
        for channel in [channel for channel, deadline in self._callers.items() if deadline <= now]:
            self._dismiss(channel)
        self._poller.sleep(min(until, self._lobby.due, *self._callers.values()))

    def _refuse_others(self) -> None:
        while self._thread:
            self._turn(float("inf"))

    def _admit(self, handshake: HandshakeIO[Callee]) -> None:
        handshake.send(handshake.party.welcome(0))
        channel = Channel(handshake.sock, handshake.party.keys, is_caller=False)
        self._callers[channel] = time.monotonic() + _INTRODUCTION_S
        self._poller.set(handshake.sock, select.POLLIN, lambda _: self._listen_to(channel))

    def _listen_to(self, channel: Channel) -> None:
        try:
            for kind, payload in channel.receive():
                if kind is not Record.INTRODUCTION:
                    raise FrameError("no introduction")
                if reason := self._judge(channel, payload):
                    channel.sock.send(channel.seal(Record.REFUSAL, reason=reason), socket.MSG_NOSIGNAL)
                    self._dismiss(channel)
                return
        except (OSError, FrameError):
            self._dismiss(channel)

    def _dismiss(self, channel: Channel) -> None:
        del self._callers[channel]
        self._poller.close(channel.sock)

    def _judge(self, channel: Channel, payload: bytes) -> str:
        """Lets the node in, or returns why not. What its user has to correct on all nodes ends the wait for others."""
        address = channel.sock.getpeername()[0].removeprefix("::ffff:")
        try:
            introduction = read(Introduction, parse_fields(payload))
        except FrameError:
            return self._give_up(f"the node at {address}", self._misfit(payload))
        who = f"node {introduction.node} ({_hostname(introduction)}, {address})"
        if misfit := printable(introduction.hello.misfit(self._own)):
            return self._give_up(who, misfit)
        if introduction.nodes != self._place.count:
            reason = f"it was started with --nnodes {introduction.nodes}, and node 0 with {self._place.count}"
            return self._give_up(who, reason)
        if not 0 < introduction.node < self._place.count:
            return f"there is no node {introduction.node} in a job of {self._place.count}"
        if self._has_begun:
            return _BEGUN
        if first := self._by_node.get(introduction.node):
            self._take(first)  # it may have left, and be the one that calls again
            if not first.has_ended:
                self._say(f"{who} was turned away, since {first.address} is node {introduction.node} already")
                return f"{first.address} is node {introduction.node} already; give each node a --node-rank of its own"
        del self._callers[channel]
        node = NodeConnection(channel, introduction, address)
        node.host = who
        self._by_node[introduction.node] = node
        self._poller.set(channel.sock, select.POLLIN, lambda _: self._take(node))
        node.welcome(self.name)
        return ""

    def _misfit(self, payload: bytes) -> str:
        fields: dict[str, Any] = {}
        with suppress(FrameError):
            fields = parse_fields(payload)
        hello = fields.get("hello")
        version = shown(hello.get("version"))[:40] if isinstance(hello, dict) else "unknown"
        return f"it has hvdlite {version}, and node 0 has {self._own.version}; install the same version on both"

    def _give_up(self, who: str, reason: str) -> str:
        if not self._has_begun:
            self._error = self._error or LaunchError(f"the job cannot start with {who}: {reason}")
        return reason

    def _take(self, node: NodeConnection) -> None:
        """Listens to a node that waits; one that leaves may come again."""
        node.take()
        if node.has_ended:
            self._poller.let_go(node.sock)
            node.part(Scope.of(0.0))
            del self._by_node[node.introduction.node]

    def _name_nodes(self) -> None:
        """Gives each node the name of its host, and a number if another node has the same name."""
        names = {number: _hostname(node.introduction) for number, node in self._by_node.items()}
        count = Counter([*names.values(), self.name])
        for number, node in self._by_node.items():
            name = names[number]
            node.host = name if count[name] == 1 and name and not is_local(name) else f"{name}#{number}"

    def _nobody_came(self, missing: Sequence[str], timeout_s: float) -> str:
        strangers = ""
        if count := self._lobby.refused:
            places = f" from {', '.join(self._lobby.refused_at)}" if self._lobby.refused_at else ""
            strangers = f" {count} call(s){places} did not have this key."
        return (
            f"{_nodes(missing)} of {self._place.count} did not come to port {self._place.master.port} within "
            f"{timeout_s:g} s.{strangers} See what hvdrun says there, or give them more time with --start-timeout"
        )


def _hostname(introduction: Introduction) -> str:
    return _NOT_IN_NAMES.sub("?", introduction.hello.hostname)


def _nodes(numbers: Sequence[str]) -> str:
    return f"node {numbers[0]}" if len(numbers) == 1 else f"nodes {', '.join(numbers)}"


def _listen(place: NodePlace) -> Listener:
    """Listens at the address that ``place`` names if it is one of this host, else at all: names may not resolve yet."""
    everywhere = ["::", "0.0.0.0"] if socket.has_ipv6 else ["0.0.0.0"]
    host, port = place.master
    is_here = host in _LOOPBACK or is_own_address(host)
    for address in [_LOOPBACK.get(host, host)] if is_here else everywhere:
        try:
            return listen_at(address, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE or address == everywhere[-1] or is_here:
                raise LaunchError(
                    f"node 0 cannot listen at port {port}: {error.strerror}. Name a free one on all nodes: "
                    f"--master {host}:PORT"
                ) from None
    raise AssertionError
