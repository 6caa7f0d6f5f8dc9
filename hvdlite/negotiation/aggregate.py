"""Merges the news of the ranks of a host, on the first of these ranks, before it sends them to the root.

A known tensor is ready on a host when all ranks of the host have submitted it. One message then reports it for all of
them. Until then the tensor is *held*, since the root could not run it anyway. After a while it is *released*: the host
reports which ranks have submitted it, so that the root can name the late ranks, and later reports each late rank as
soon as that rank submits the tensor.

A request by name is sent at once. Nothing is held while a request is unanswered, because other ranks may submit the
same tensor by its bit. Nothing is held while ranks use different generations, whose bits only the root can compare.

Later bits of a rank may overtake a held bit; requests never do. Requests and bits of one message stay together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_, or_

from hvdlite.negotiation.messages import News, Ready, Run


class Aggregator:
    """The state of one host.

    ``_held`` and ``_released`` have the bits of each rank, in the rank's generation (``_generations``). Released bits
    were sent for one rank alone and have not run yet. A bit stays held only while some rank has not submitted it.
    ``_blank`` has the held bits for which the rank has no value. ``_requested`` has the names of the requests that the
    root has not answered.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = tuple(ranks)
        self._held = dict.fromkeys(ranks, 0)
        self._blank = dict.fromkeys(ranks, 0)
        self._released = dict.fromkeys(ranks, 0)
        self._generations = dict.fromkeys(ranks, 0)
        self._requested: set[str] = set()

    @property
    def is_waiting(self) -> bool:
        """True if something is held."""
        return any(self._held.values())

    def receive(self, rank: int, ready: Ready) -> list[News]:
        """Takes a message of ``rank``. Returns the news to send to the root now."""
        news = []
        if ready.generation != self._generations[rank]:
            news = self._release(rank)
            self._released[rank] = 0
            self._generations[rank] = ready.generation
        self._held[rank] |= ready.bits
        self._blank[rank] |= ready.blank_bits
        self._requested.update(request.name for request in ready.requests)
        if ready.requests:
            for other in self._ranks:
                news += self._release(other) if other != rank else []
            bits, blank = self._clear_held(rank)
            own = Ready(ready.generation, bits, ready.requests, blank, ready.blank_requests)
            news.append(News((rank,), own))
        elif self._requested or len(set(self._generations.values())) > 1:
            news += self.release()
        else:
            news += self._agree(rank)
        return news

    def release(self) -> list[News]:
        """Returns the news of everything that is held, and holds it no longer."""
        return [news for rank in self._ranks for news in self._release(rank)]

    def decide(self, run: Run) -> None:
        """Applies a decision of the root: forgets the tensors that it answers."""
        ran = run.bits
        for response in (response for batch in run.batches for response in batch.responses):
            self._requested.discard(response.name)
        for rank, released in self._released.items():
            if released and self._generations[rank] == run.generation:
                self._released[rank] = released & ~ran

    def _release(self, rank: int) -> list[News]:
        bits, blank = self._clear_held(rank)
        return [News((rank,), Ready(self._generations[rank], bits, (), blank))] if bits else []

    def _clear_held(self, rank: int) -> tuple[int, int]:
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
            rest = self._held[rank] & common & ~whole  # tensors that were released for other ranks
            if rest:
                news.append(News((rank,), Ready(generation, rest, (), self._blank[rank] & rest)))
            self._held[rank] &= ~common
            self._blank[rank] &= ~common
        return news
