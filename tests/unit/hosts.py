"""Ranks on several hosts without threads or sockets: their messages pass through the first rank of each host."""

from __future__ import annotations

from collections import deque

from hypothesis import strategies as st

from hvdlite.negotiation.aggregate import Aggregator
from hvdlite.negotiation.messages import Gathered, News, Ready, Request, Run
from hvdlite.negotiation.wire import decode, encode
from tests.unit.replicas import Ranks


class Host:
    """A leader's aggregator, and what is on its way between it and the root."""

    def __init__(self, ranks: list[int]) -> None:
        self.ranks = ranks
        self.aggregator = Aggregator(ranks)
        self.up: deque[bytes] = deque()
        self.down: deque[Run] = deque()


class RanksOnHosts:
    """Ranks whose messages pass through their hosts; each `move` is one message on one link, or a decision."""

    def __init__(self, sizes: list[int], capacity: int, threshold: int) -> None:
        self.ranks = Ranks(sum(sizes), capacity, threshold)
        first = [sum(sizes[:index]) for index in range(len(sizes))]
        self.hosts = [Host(list(range(begin, begin + size))) for begin, size in zip(first, sizes, strict=True)]
        self.todo: list[list[tuple[Request, ...]]] = [[] for _ in self.ranks.leaves]
        self.blank: list[list[set[str]]] = [[] for _ in self.ranks.leaves]  # for each of `todo`, names without a value

    def moves(self) -> list[tuple[str, int]]:
        moves = [("submit", rank) for rank, items in enumerate(self.todo) if items and self._is_free(rank)]
        for index, host in enumerate(self.hosts):
            moves += [("gather", rank) for rank in host.ranks if self.ranks.leaves[rank].up]
            moves += [("across", index)] if host.up else []
            moves += [("pass", index)] if host.down else []
        moves += [("take", rank) for rank, leaf in enumerate(self.ranks.leaves) if leaf.down]
        return moves + ([("cut", 0)] if self.ranks.negotiator.has_agreed else [])

    def move(self, kind: str, which: int) -> None:
        getattr(self, "_" + kind)(which)

    def run(self, data: st.DataObject, releases: bool) -> None:
        """Move in any order until all ranks are done. ``releases``: the timer of a leader may fire at any time."""
        leaves = self.ranks.leaves
        while any(self.todo) or self.moves() or any(leaf.in_flight for leaf in leaves):
            waiting = [host for host in self.hosts if host.aggregator.is_waiting] if releases else []
            if waiting and data.draw(st.booleans()):
                self.send(waiting[0], waiting[0].aggregator.release())
            else:
                self.move(*data.draw(st.sampled_from(self.moves())))

    def check_all_alike(self) -> None:
        """All ranks ran the same, and nobody waits."""
        leaves = self.ranks.leaves
        assert all(leaf.ran == leaves[0].ran for leaf in leaves)
        assert not self.ranks.negotiator.is_waiting
        assert not any(host.aggregator.is_waiting for host in self.hosts)

    def send(self, host: Host, news: list[News]) -> None:
        if news:
            host.up.append(encode(Gathered(tuple(news)), 0, 0))

    def _is_free(self, rank: int) -> bool:
        return all(each.name not in self.ranks.leaves[rank].in_flight for each in self.todo[rank][0])

    def _submit(self, rank: int) -> None:
        blank = self.blank[rank].pop(0) if self.blank[rank] else ()
        self.ranks.leaves[rank].submit(*self.todo[rank].pop(0), blank=blank)

    def _gather(self, rank: int) -> None:
        (host,) = [host for host in self.hosts if rank in host.ranks]
        ready = decode(self.ranks.leaves[rank].up.popleft(), 0, 0)
        assert isinstance(ready, Ready)
        self.send(host, host.aggregator.receive(rank, ready))

    def _across(self, index: int) -> None:
        gathered = decode(self.hosts[index].up.popleft(), 0, 0)
        assert isinstance(gathered, Gathered)
        for ranks, ready in gathered.news:
            for rank in ranks:
                self.ranks.negotiator.receive(rank, ready)

    def _cut(self, _: int) -> None:
        run = self.ranks.negotiator.cut()
        for host in self.hosts:
            host.down.append(run)

    def _pass(self, index: int) -> None:
        run = self.hosts[index].down.popleft()
        self.hosts[index].aggregator.decide(run)
        for rank in self.hosts[index].ranks:
            self.ranks.leaves[rank].down.append(encode(run, 0, 0))

    def _take(self, rank: int) -> None:
        self.ranks.leaves[rank].take()
