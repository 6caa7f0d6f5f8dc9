"""The root's decision: which tensors are ready on every rank, and in which batches they run.

Ranks submit in any order; the root answers in one order for all. A tensor that every rank knows is a bit, and the bits
that are set on all ranks are ready. A tensor that is new, or that some rank describes anew, is asked for by name: once
every rank has asked, the requests are compared, and the answer is either an error for all of them or a definition with
a bit. A bit that meets a request of the same name becomes *stale*: it is read as the request that it stands for until
the name is answered.

Invariants: a name is in flight at most once on each rank, so a rank cannot send a bit whose meaning changed before it
has seen the change. A rank in ``_asked[name]`` has no bit set for that name. ``_ready`` never has a bit set on all.
"""

from __future__ import annotations

from collections.abc import Container
from functools import reduce
from operator import and_, or_

from hvdlite.core.agree import disagreement
from hvdlite.core.bits import members
from hvdlite.core.cache import Definition, Definitions
from hvdlite.core.fuse import Agreed, fuse
from hvdlite.core.messages import Batch, Kind, Ready, Request, Response, Run
from hvdlite.core.wire import ProtocolError


class Negotiator:
    """The root's state for ``size`` ranks. Feed it with `receive`, take decisions with `cut`."""

    def __init__(self, size: int, cache_capacity: int, fusion_threshold: int) -> None:
        self._size = size
        self._capacity = cache_capacity
        self._threshold = fusion_threshold
        self._generation = 0
        self._definitions = Definitions(cache_capacity)
        self._retired: dict[int, Definitions] = {}
        self._seen_generation = [0] * size
        self._ready = [0] * size
        self._stale = 0
        self._asked: dict[str, dict[int, Request]] = {}
        self._agreed_bits = 0
        self._agreed: list[Agreed] = []
        self._errors: list[Response] = []
        self._is_full = False

    @property
    def has_agreed(self) -> bool:
        """Whether `cut` has anything to give."""
        return bool(self._agreed_bits or self._agreed or self._errors)

    @property
    def is_waiting(self) -> bool:
        """Whether some ranks submitted what others did not."""
        return bool(self._asked) or any(self._ready)

    def receive(self, rank: int, ready: Ready) -> None:
        """Takes the news of ``rank``. Raises ProtocolError when no correct rank could have sent it."""
        if ready.bits:
            if ready.generation != self._generation:
                self._receive_retired(rank, ready)
            elif ready.bits >> len(self._definitions):
                raise ProtocolError(f"rank {rank} named a tensor that was never agreed")
            else:
                self._receive_bits(rank, ready.bits)
        for request in ready.requests:
            self._ask(rank, request)
        self._seen_generation[rank] = ready.generation

    def cut(self) -> Run | None:
        """The batches of everything agreed so far, or None. The caller sends them to all ranks in this order."""
        if not self.has_agreed:
            return None
        batches = [Batch(0, tuple(self._errors))] if self._errors else []
        batches += fuse(self._agreed_bits, self._definitions, self._agreed, self._threshold)
        run = Run(self._generation, tuple(batches))
        self._agreed_bits = 0
        self._agreed = []
        self._errors = []
        if self._is_full:
            self._forget()
        return run

    def waiting(self) -> dict[str, tuple[int, ...]]:
        """The names that some ranks submitted, each with the ranks that did not."""
        missing = {name: self._ranks_not_in(asked) for name, asked in self._asked.items()}
        submitted = reduce(or_, self._ready)
        for bit in members(submitted) if submitted else ():
            present = [rank for rank in range(self._size) if self._ready[rank] >> bit & 1]
            missing[self._definitions[bit].request.name] = self._ranks_not_in(present)
        return missing

    def _receive_bits(self, rank: int, bits: int) -> None:
        if changed := bits & self._stale:
            bits ^= changed
            for bit in members(changed):
                self._ask(rank, self._definitions[bit].of_rank(rank))
        self._ready[rank] |= bits
        common = reduce(and_, self._ready)
        if common:
            self._agreed_bits |= common
            self._ready = [ready ^ common for ready in self._ready]

    def _receive_retired(self, rank: int, ready: Ready) -> None:
        table = self._retired.get(ready.generation)
        if table is None or ready.bits >> len(table):
            raise ProtocolError(f"rank {rank} named a tensor of generation {ready.generation}, which is forgotten")
        for bit in members(ready.bits):
            self._ask(rank, table[bit].of_rank(rank))

    def _ask(self, rank: int, request: Request) -> None:
        bit = self._definitions.bit_of(request.name)
        if bit >= 0 and not self._stale >> bit & 1:
            self._make_stale(bit)
        asked = self._asked.setdefault(request.name, {})
        if rank in asked:
            raise ProtocolError(f"rank {rank} submitted {request.name!r} twice")
        asked[rank] = request
        if len(asked) == self._size:
            del self._asked[request.name]
            self._answer(bit, [asked[rank] for rank in range(self._size)])

    def _make_stale(self, bit: int) -> None:
        self._stale |= 1 << bit
        definition = self._definitions[bit]
        for rank in range(self._size):
            if self._ready[rank] >> bit & 1:
                self._ready[rank] ^= 1 << bit
                self._asked.setdefault(definition.request.name, {})[rank] = definition.of_rank(rank)

    def _answer(self, bit: int, requests: list[Request]) -> None:
        first = requests[0]
        if bit >= 0:
            self._stale ^= 1 << bit
        if error := disagreement(requests):
            self._errors.append(Response(first.name, error, (), -1))
            return
        rows = tuple(request.shape[0] for request in requests) if first.kind is Kind.ALLGATHER else ()
        definition = Definition(first, rows)
        if not all(request.cacheable for request in requests):
            bit = -1
        elif bit >= 0:
            self._definitions.replace(bit, definition)
        elif not self._definitions.is_full:
            bit = self._definitions.add(definition)
        else:
            self._is_full = self._capacity > 0
        self._agreed.append(Agreed(Response(first.name, "", rows, bit), definition))

    def _forget(self) -> None:
        self._is_full = False
        oldest = min(self._seen_generation)
        self._retired = {number: table for number, table in self._retired.items() if number >= oldest}
        self._retired[self._generation] = table = self._definitions
        self._generation += 1
        self._definitions = Definitions(self._capacity)
        self._stale = 0
        waiting, self._ready = self._ready, [0] * self._size
        for rank, bits in enumerate(waiting):
            for bit in members(bits) if bits else ():
                self._ask(rank, table[bit].of_rank(rank))

    def _ranks_not_in(self, present: Container[int]) -> tuple[int, ...]:
        return tuple(rank for rank in range(self._size) if rank not in present)
