"""Control links in a tree: the ranks of a host talk to its first rank, and only that one talks across hosts.

The first rank of each host is its *leader*. Its link forwards the root's decisions unchanged, and its decider sends the
news of the host (`hvdlite.engine.deciders`). Root and leaders combine the link across hosts and the link within the
host. Other ranks have a `UnixLink` to their leader; when the leader is lost, so are they.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hvdlite.control.link import ControlLink, Lost, Received
from hvdlite.control.unixlink import UnixLink
from hvdlite.control.zmqlink import ZmqLink
from hvdlite.negotiation.messages import ORDERLY, End, EndKind, Gathered, Run
from hvdlite.negotiation.wire import Message, ProtocolError
from hvdlite.scope import Scope


class _HostLink(ControlLink):
    """Two links that share one inbox."""

    def __init__(self, across: ZmqLink, within: UnixLink) -> None:
        self.inbox = across.inbox
        self.inbox.add(within.inbox.fileno())
        self.page = within.page
        if self.page is not None:
            self.inbox.use(self.page)
        self._across = across
        self._within = within

    @property
    def due(self) -> float | None:
        return self._across.due

    def flush(self, scope: Scope) -> None:
        self._within.flush(scope)
        self._across.flush(scope)

    def close(self) -> None:
        self._within.close()
        self._across.close()


class RootHostLink(_HostLink):
    """The root's end. ``hosts`` has the ranks of each leader's host, itself among them."""

    def __init__(self, across: ZmqLink, within: UnixLink, hosts: Mapping[int, Sequence[int]]) -> None:
        super().__init__(across, within)
        self._hosts = hosts

    def send(self, message: Message) -> None:
        if not (isinstance(message, Run) and message.opens):  # which is for the ranks of a host
            self._across.send(message)
        self._within.send(message)

    def receive(self) -> Iterator[Received | Lost]:
        yield from self._within.receive()
        for item in self._across.receive():
            if isinstance(item, Lost):
                yield item
                continue
            sender, message = item
            if isinstance(message, Gathered):
                yield from self._spread(sender, message)
            else:
                yield item

    def _spread(self, leader: int, gathered: Gathered) -> Iterator[Received]:
        for ranks, ready in gathered.news:
            for rank in ranks:
                if rank not in self._hosts[leader]:
                    raise ProtocolError(f"rank {leader} reports for rank {rank}, which is not on its host")
                yield rank, ready


class LeaderLink(_HostLink):
    """A leader's end on another host. ``number`` is its own in the job."""

    def __init__(self, across: ZmqLink, within: UnixLink, number: int) -> None:
        super().__init__(across, within)
        self._number = number
        self._farewell: End | None = None

    def send(self, message: Message) -> None:
        """Sends news to the root, a run that opens the page to the host, and an end where it must be known."""
        if isinstance(message, Run):
            self._within.send(message)
            return
        self._across.send(message)
        if isinstance(message, End):
            if message.kind not in ORDERLY:  # it needs no decision of the root, which may be lost itself
                self._within.send(message)
            elif message.rank == self._number:
                self._farewell = message

    def receive(self) -> Iterator[Received | Lost]:
        yield from self._within.receive()
        for item in self._across.receive():
            if not isinstance(item, Lost):
                _, message = item
                if not (isinstance(message, End) and message.kind is EndKind.EXITED):  # they will not see it happen
                    self._within.send(message)
            yield item

    def close(self) -> None:
        if self._farewell is not None:  # only now, because the root's end decides what still runs
            self._within.send(self._farewell)
        super().close()
