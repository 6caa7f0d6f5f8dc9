"""Control links in a tree: the ranks of a host talk to its first rank, and only that one talks across hosts.

The first rank of each host is its *leader*. It forwards the root's decisions unchanged, and sends the news of its host
as one message (`hvdlite.negotiation.aggregate`). Root and leaders combine the link across hosts and the link within the
host. Other ranks have a `UnixLink` to their leader; when the leader is lost, so are they.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from hvdlite.control.link import ControlLink, Left, Lost, Received
from hvdlite.control.unixlink import UnixLink
from hvdlite.control.zmqlink import ZmqLink
from hvdlite.negotiation.aggregate import Aggregator
from hvdlite.negotiation.messages import ORDERLY, End, EndKind, Gathered, News, Ready, Run
from hvdlite.negotiation.wire import Message, ProtocolError
from hvdlite.scope import Scope

_HOLD_S = 1.0  # how long the news of some ranks of a host wait for the news of the others


class _HostLink(ControlLink):
    """Two links that share one inbox."""

    def __init__(self, across: ZmqLink, within: UnixLink) -> None:
        self.inbox = across.inbox
        self.inbox.add(within.inbox.fileno())
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
    """A leader's end on another host, whose ``ranks`` begin with its own."""

    def __init__(self, across: ZmqLink, within: UnixLink, ranks: Sequence[int]) -> None:
        super().__init__(across, within)
        self._rank = ranks[0]
        self._aggregator = Aggregator(ranks)
        self._held_until: float | None = None
        self._news: list[News] = []
        self._farewell: End | None = None

    @property
    def due(self) -> float | None:
        return min((due for due in (self._held_until, super().due) if due is not None), default=None)

    def send(self, message: Message) -> None:
        if isinstance(message, Ready):
            self._news += self._aggregator.receive(self._rank, message)
            self._send_news()
        elif isinstance(message, End):
            self._send_end(message)
            if message.kind in ORDERLY:
                self._farewell = message

    def receive(self) -> Iterator[Received | Lost | Left]:
        for item in self._within.receive():
            if isinstance(item, Lost):
                yield item
                continue
            sender, message = item
            if isinstance(message, Ready):
                self._news += self._aggregator.receive(sender, message)
            elif isinstance(message, End):
                if message.kind is not EndKind.EXITED:  # which is for this rank: it will see the connection end
                    self._send_end(message)
                yield Left(message) if message.kind in ORDERLY else item
            else:
                raise ProtocolError(f"rank {sender} sent a message that only rank 0 sends")
        self._send_news()
        yield from self._pass_on()

    def close(self) -> None:
        if self._farewell is not None:  # only now, because the root's end decides what still runs
            self._within.send(self._farewell)
        super().close()

    def _pass_on(self) -> Iterator[Received | Lost]:
        for item in self._across.receive():
            if not isinstance(item, Lost):
                _, message = item
                if isinstance(message, Run):
                    self._aggregator.decide(message)
                if not (isinstance(message, End) and message.kind is EndKind.EXITED):
                    self._within.send(message)
            yield item

    def _send_end(self, end: End) -> None:
        self._news += self._aggregator.release()
        self._send_news()
        self._across.send(end)
        if end.kind not in ORDERLY:  # it needs no decision of the root, which may be lost itself
            self._within.send(end)

    def _send_news(self) -> None:
        if not self._aggregator.is_waiting:
            self._held_until = None
        elif self._held_until is None:
            self._held_until = time.monotonic() + _HOLD_S
        elif time.monotonic() >= self._held_until:
            self._news += self._aggregator.release()
            self._held_until = None
        if self._news:
            self._across.send(Gathered(tuple(self._news)))
            self._news = []
