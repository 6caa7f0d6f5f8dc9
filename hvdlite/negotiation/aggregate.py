"""Merges the news of a host's ranks, in the first of these ranks, before they are sent to the root.

A known tensor is ready on a host when all ranks of the host have submitted it. Then one message reports it for all of
them. Until then the tensor is *held*, since the root could not run it anyway. After a while it is *released*: the root
receives which ranks have submitted it, so that it can name those that are late. The news of a late rank is sent when it
comes.

A request by name is sent at once. Nothing is held while a request is unanswered, because other ranks may refer to the
same tensor by its bit. Nothing is held while ranks are in different generations, whose bits only the root can compare.

Later bits of a rank may overtake a held bit; requests never do. Requests and bits that a rank submits together stay
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_, or_

from hvdlite.negotiation.messages import News, Ready, Run


class Aggregator:
    """The state of one host.

    ``_held`` and ``_released`` are bits by rank, of that rank's generation in ``_generations``. Released bits were sent
    for one rank alone and have not run yet. A bit is held only while some rank has neither held nor released it.
    ``_blank`` are the held bits for which the rank has no value.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = tuple(ranks)
        self._held = dict.fromkeys(ranks, 0)
        self._blank = dict.fromkeys(ranks, 0)
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
        self._blank[rank] |= ready.blank_bits
        self._asked.update(request.name for request in ready.requests)
        if ready.requests:
            for other in self._ranks:
                news += self._release(other) if other != rank else []
            bits, blank = self._let_go(rank)
            own = Ready(ready.generation, bits, ready.requests, blank, ready.blank_requests)
            news.append(News((rank,), own))
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
        bits, blank = self._let_go(rank)
        return [News((rank,), Ready(self._generations[rank], bits, (), blank))] if bits else []

    def _let_go(self, rank: int) -> tuple[int, int]:
        bits, self._held[rank] = self._held[rank], 0
        blank, self._blank[rank] = self._blank[rank], 0
        self._released[rank] |= bits
        return bits, blank

    def _agree(self, last: int) -> list[News]:
        common = reduce(and_, (self._held[rank] | self._released[rank] for rank in self._ranks))
        if not common:
            return []
        generation = self._generations[self._ranks[0]]
        whole = common & ~reduce(or_, self._released.values())
        ranks = (*(rank for rank in self._ranks if rank != last), last)
        blank = reduce(and_, self._blank.values()) & whole
        news = [News(ranks, Ready(generation, whole, (), blank))] if whole else []
        for rank in ranks:
            rest = self._held[rank] & common & ~whole  # bits of tensors released for other ranks
            if rest:
                news.append(News((rank,), Ready(generation, rest, (), self._blank[rank] & rest)))
            self._held[rank] &= ~common
            self._blank[rank] &= ~common
        return news
