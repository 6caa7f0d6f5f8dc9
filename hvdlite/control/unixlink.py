"""Control links within a host: Unix sockets that the coordinator itself reads and writes.

A message costs one system call on each side and wakes one thread, or finds it awake: a driver spins before it sleeps,
because a wake-up takes longer than most waits. With ZeroMQ, which uses a thread of its own on either side, a round trip
takes several times as long (docs/threads.md).

When a process ends, its connection ends, unless a forked child still holds it, and its pidfd becomes readable in any
case. A process that is stopped (SIGSTOP) stays connected, so its state is read from ``/proc`` while this rank waits. If
it is lost for that and goes on later, it reads the `End` that names it. A rank whose Python is busy or hung is late,
not lost.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from hvdlite.control.frames import FrameSocket
from hvdlite.control.inbox import Inbox
from hvdlite.control.link import ControlLink, Lost, Received
from hvdlite.control.page import Page, PageOffer
from hvdlite.errors import ENDED, HorovodInternalError
from hvdlite.host.proc import stat_of
from hvdlite.members.membership import Membership
from hvdlite.members.ranges import shortened
from hvdlite.negotiation.wire import Message, decode, encode
from hvdlite.net.listener import peer_of
from hvdlite.net.local_listener import LocalListener, say_hello
from hvdlite.net.poll import comes
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.spin import native_spin_ns

_CLOSE_S = 2.0


@dataclass(slots=True, eq=False)
class _Peer:
    """The other end of one connection.

    ``pidfd`` is -1 where the process cannot be seen from here. ``stopped_at`` is when it was first seen stopped, on the
    monotonic clock.
    """

    rank: int
    pid: int
    pidfd: int
    frames: FrameSocket
    received: int = 0
    stopped_at: float | None = field(default=None)


class UnixLink(ControlLink):
    """One rank's end: the first rank of the host has a peer for each other one, the others have it alone.

    The leader calls `accept` before it uses the link, the others `dial`.
    """

    def __init__(self, membership: Membership, options: Settings) -> None:
        self._spin_ns = native_spin_ns(options.spin, len(membership.on_this_host))
        self.inbox = Inbox(self._spin_ns)
        self._membership = membership
        self._session = membership.session
        self._sent = 0
        self._heartbeat_s = options.heartbeat_interval
        self._patience_s = options.peer_timeout
        self._next_look = 0.0
        self._all: list[_Peer] = []  # without lost ones
        self._peers: dict[int, _Peer] = {}  # the same by descriptor, most of which have two
        self._stopped: list[_Peer] = []  # lost ones, which read the `End` that names them if they go on

    def accept(self, listener: LocalListener, scope: Scope) -> None:
        """At the leader: waits until all others of its host have connected to ``listener``.

        Raises HorovodInternalError if they do not come in time.
        """
        members = self._membership
        missing = set(members.on_this_host[1:])
        peers = listener.admit(scope)
        try:
            while missing:
                peer, greeting = next(peers)
                if greeting.isdigit() and int(greeting) in missing:
                    missing.discard(int(greeting))
                    self._add(int(greeting), peer)
                else:
                    peer.close()
        except TimeoutError:
            late = shortened(members.ranks[rank] for rank in missing)
            raise HorovodInternalError(
                f"rank(s) {late} did not connect to rank {members.number} in time; see their output"
            ) from None
        finally:
            peers.close()

    def dial(self, address: str, scope: Scope) -> None:
        """At any other rank: connects to its leader. Raises HorovodInternalError if the leader does not listen."""
        members = self._membership
        leader = members.on_this_host[0]
        try:
            connection = say_hello(address, members.key_for("listener"), b"%d" % members.rank, scope)
        except OSError as error:
            raise HorovodInternalError(
                f"rank {members.number} cannot connect to rank {members.ranks[leader]}: {error}"
            ) from None
        self._add(leader, connection)

    def give(self, offer: PageOffer | None) -> None:
        """At the leader, before any message: gives the page to all others, or reports that there is none."""
        names, fds = (b"", []) if offer is None else (b"%d" % offer.names, offer.fds)
        for peer in self._all:
            peer.frames.send_descriptors(names, fds)
        if offer is not None:
            self._use(offer.take(), offer.names)

    def fetch(self, scope: Scope) -> None:
        """At any other rank, before any message: waits for the page. Raises HorovodInternalError if none comes."""
        members, frames = self._membership, self._all[0].frames
        here = members.on_this_host
        try:
            names, fds = frames.receive_descriptors(1 + len(here), scope)
        except OSError as error:
            raise HorovodInternalError(
                f"rank {members.number} got no page from rank {members.ranks[here[0]]}: {error}"
            ) from None
        if names:
            self._use(fds, int(names))

    def _use(self, fds: list[int], names: int) -> None:
        members = self._membership
        here = members.on_this_host
        self.page = Page(fds, here.index(members.rank), len(here), names, self._spin_ns)
        if members.is_one_host:
            self.inbox.use(self.page)
        elif members.rank != here[0]:  # the leader's inbox is that of both its links
            self.inbox.use(self.page, awaits_decisions=False)

    def send(self, message: Message) -> None:
        frame = encode(message, self._sent, self._session)
        self._sent += 1
        for peer in self._all:
            if not peer.frames.send(frame):
                self.inbox.await_events(peer.frames.fileno(), select.EPOLLIN | select.EPOLLOUT)
        for peer in self._stopped:
            if not peer.frames.send(frame):  # then it sees no more than the end of its connection
                self._close_peer(peer)

    def receive(self) -> Iterator[Received | Lost]:
        for fd, event in self.inbox.ready():
            peer = self._peers.get(fd)
            if peer is None:  # lost a moment ago, by its other descriptor
                continue
            if fd == peer.pidfd:
                yield from self._read_last(peer)
                continue
            if event & select.EPOLLOUT and peer.frames.flush():
                self.inbox.await_events(fd, select.EPOLLIN)
            if event & ~select.EPOLLOUT:
                yield from self._read(peer)
        if (now := time.monotonic()) >= self._next_look:
            self._next_look = now + self._heartbeat_s
            yield from self._look_for_stopped(now)

    def flush(self, scope: Scope) -> None:
        for peer in self._all:
            while not peer.frames.flush() and not scope.is_over:
                comes(peer.frames.fileno(), select.POLLOUT, scope.left_s)

    def close(self) -> None:
        self.flush(Scope.of(_CLOSE_S))
        for peer in self._all + self._stopped:
            self._close_peer(peer)
        self.inbox.close()
        if self.page is not None:
            self.page.close()

    def _add(self, rank: int, connection: socket.socket) -> None:
        pid = peer_of(connection).pid
        peer = _Peer(rank, pid, _pidfd_of(pid), FrameSocket(connection))
        self._all.append(peer)
        for fd in (peer.frames.fileno(), peer.pidfd):
            if fd >= 0:
                self._peers[fd] = peer
                self.inbox.add(fd)

    def _read(self, peer: _Peer) -> Iterator[Received | Lost]:
        frame = peer.frames.receive()
        if frame is not None:
            peer.received += 1
            yield peer.rank, decode(frame, peer.received - 1, self._session)
        elif peer.frames.has_ended:
            yield self._lose(peer, ENDED)

    def _read_last(self, peer: _Peer) -> Iterator[Received | Lost]:
        """Reads what a process sent before it ended."""
        while peer.frames.fileno() in self._peers and peer.frames.may_receive():
            yield from self._read(peer)
        if peer.frames.fileno() in self._peers:
            yield self._lose(peer, ENDED)

    def _look_for_stopped(self, now: float) -> Iterator[Lost]:
        for peer in tuple(self._all):
            if not _is_stopped(peer.pid):
                peer.stopped_at = None
            elif peer.stopped_at is None:
                peer.stopped_at = now
            elif now - peer.stopped_at >= self._patience_s:
                self._forget(peer)
                self._stopped.append(peer)
                yield Lost(peer.rank, f"its process {peer.pid} has been stopped for {now - peer.stopped_at:.1f} s")

    def _lose(self, peer: _Peer, cause: str) -> Lost:
        self._forget(peer)
        self._close_peer(peer)
        return Lost(peer.rank, cause)

    def _forget(self, peer: _Peer) -> None:
        for fd in (peer.frames.fileno(), peer.pidfd):
            if self._peers.pop(fd, None) is not None:
                self.inbox.remove(fd)
        if peer in self._all:
            self._all.remove(peer)

    @staticmethod
    def _close_peer(peer: _Peer) -> None:
        peer.frames.close()
        if peer.pidfd >= 0:
            os.close(peer.pidfd)
            peer.pidfd = -1


def _pidfd_of(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:  # another pid namespace, or a kernel before 5.3: then only the connection shows its end
        return -1


def _is_stopped(pid: int) -> bool:
    """True if a signal stopped the process; false if a debugger holds it or its state cannot be read."""
    try:
        return stat_of(pid).state == "T"
    except OSError:
        return False
