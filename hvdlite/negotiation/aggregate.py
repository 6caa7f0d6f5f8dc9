"""Combines the news of a host's ranks, in its first rank, before they go to the root.

A tensor that every rank knows is ready on a host once all ranks there have said so, and one message says it for all of
them. What only some of them have is *held*: the root could do nothing with it, since it waits for the others too. After
a while it is *released*, so that the root can tell who is late, and the rest follows when it comes.

What is asked for by name goes up at once. Until it is answered nothing is held, since the other ranks may mean the same
tensor by a bit; nor is anything while ranks have seen different generations, whose bits only the root can compare. The
news of one rank never overtake each other but for that, and a request never overtakes a bit. What a rank submits as
one, requests and bits, goes up as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_, or_

from hvdlite.negotiation.messages import News, Ready, Run


class Aggregator:
    """The state of one host.

    Invariants: ``_held`` and ``_released`` of a rank are bits of the generation in ``_generations``; the latter were
    sent up for this rank alone and have not run. No bit that is held is in one of the two for all ranks.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = tuple(ranks)
        self._held = dict.fromkeys(ranks, 0)
        self._released = dict.fromkeys(ranks, 0)
        self._generations = dict.fromkeys(ranks, 0)
        self._asked: set[str] = set()

    @property
    def is_waiting(self) -> bool:
        """True if something is held."""
        return any(self._held.values())

    def receive(self, rank: int, ready: Ready) -> list[News]:
        """Takes the news of ``rank`` and returns the news to send to the root now."""
        news = []
        if ready.generation != self._generations[rank]:
            news = self._release(rank)
            self._released[rank] = 0
            self._generations[rank] = ready.generation
        self._held[rank] |= ready.bits
        self._asked.update(request.name for request in ready.requests)
        if ready.requests:
            for other in self._ranks:
                news += self._release(other) if other != rank else []
            news.append(News((rank,), Ready(ready.generation, self._let_go(rank), ready.requests)))
        elif self._asked or len(set(self._generations.values())) > 1:
            news += self.release()
        else:
            news += self._agree(rank)
        return news

    def release(self) -> list[News]:
        """Returns everything that is held."""
        return [news for rank in self._ranks for news in self._release(rank)]

    def decide(self, run: Run) -> None:
        """Applies a decision of the root: tensors that run no longer wait."""
        ran = run.bits
        for response in (response for batch in run.batches for response in batch.responses):
            self._asked.discard(response.name)
        for rank, released in self._released.items():
            if released and self._generations[rank] == run.generation:
                self._released[rank] = released & ~ran

    def _release(self, rank: int) -> list[News]:
        bits = self._let_go(rank)
        return [News((rank,), Ready(self._generations[rank], bits, ()))] if bits else []

    def _let_go(self, rank: int) -> int:
        bits, self._held[rank] = self._held[rank], 0
        self._released[rank] |= bits
        return bits

    def _agree(self, last: int) -> list[News]:
        common = reduce(and_, (self._held[rank] | self._released[rank] for rank in self._ranks))
        if not common:
            return []
        generation = self._generations[self._ranks[0]]
        whole = common & ~reduce(or_, self._released.values())
        ranks = (*(rank for rank in self._ranks if rank != last), last)
        news = [News(ranks, Ready(generation, whole, ()))] if whole else []
        for rank in ranks:
            rest = self._held[rank] & common & ~whole  # bits of tensors released for other ranks
            self._held[rank] &= ~common
            if rest:
                news.append(News((rank,), Ready(generation, rest, ())))
        return news
