"""What the ranks remember about tensors, so that a known one costs a bit.

Every rank keeps a `Cache` from names to bits and its own last request; the root also keeps `Definitions`, from bits to
what all ranks agreed. Both change only where a response is processed, and every rank processes the same responses in
the same order, so they never differ. When the table is full the root starts a new *generation*: everything is
forgotten at one point of the response stream, and bits of an older generation are read with the older table.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hvdlite.core.messages import Kind, Request

FuseKey = tuple[object, ...]


def fuse_key(request: Request) -> FuseKey:
    """Tensors with equal keys may run in one batch."""
    if request.kind is Kind.ALLREDUCE:
        return (request.kind, request.dtype, request.op, request.prescale, request.postscale)
    if request.kind is Kind.BARRIER:
        return (request.kind, request.name)
    return (Kind.ALLGATHER,)  # gathers and broadcasts of any type are both streams of bytes


class Definition(NamedTuple):
    """What all ranks agreed about a tensor. ``rows`` are the first dimensions by rank of an allgather."""

    request: Request
    rows: tuple[int, ...]

    def of_rank(self, rank: int) -> Request:
        """The request that ``rank`` made."""
        if not self.rows:
            return self.request
        return self.request._replace(shape=(self.rows[rank], *self.request.shape[1:]))

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        shape = self.request.shape
        elements = sum(self.rows) * math.prod(shape[1:]) if self.rows else math.prod(shape)
        return elements * self.request.dtype.itemsize


class FuseClass:
    """The cached tensors that share a fuse key: their bits and their bytes together."""

    __slots__ = ("bits", "nbytes")

    def __init__(self) -> None:
        self.bits = 0
        self.nbytes = 0


class Definitions:
    """The root's table of one generation: bit to definition, and the bits of each fuse class."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._rows: list[Definition] = []
        self._bit_of: dict[str, int] = {}
        self.classes: dict[FuseKey, FuseClass] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, bit: int) -> Definition:
        return self._rows[bit]

    @property
    def is_full(self) -> bool:
        return len(self._rows) >= self._capacity

    def bit_of(self, name: str) -> int:
        """The bit of ``name``, or -1."""
        return self._bit_of.get(name, -1)

    def add(self, definition: Definition) -> int:
        """Remembers a new name and returns its bit."""
        bit = len(self._rows)
        self._bit_of[definition.request.name] = bit
        self._rows.append(definition)
        self._count(bit, definition, 1)
        return bit

    def replace(self, bit: int, definition: Definition) -> None:
        """Gives ``bit`` a new meaning under the same name."""
        self._count(bit, self._rows[bit], -1)
        self._rows[bit] = definition
        self._count(bit, definition, 1)

    def _count(self, bit: int, definition: Definition, sign: int) -> None:
        fused = self.classes.setdefault(fuse_key(definition.request), FuseClass())
        fused.bits ^= 1 << bit
        fused.nbytes += sign * definition.nbytes


class Cache:
    """One rank's memory: the bit, and what this rank last asked for, of each known name."""

    def __init__(self) -> None:
        self.generation = 0
        self._known: dict[str, tuple[int, Request]] = {}
        self._rows: dict[int, tuple[int, ...]] = {}

    def bit_of(self, request: Request) -> int:
        """The bit that stands for exactly this request, or -1."""
        known = self._known.get(request.name)
        return known[0] if known is not None and known[1] == request else -1

    def rows(self, bit: int) -> tuple[int, ...]:
        """The first dimensions by rank of an allgather; empty for other kinds."""
        return self._rows[bit]

    def remember(self, bit: int, request: Request, rows: tuple[int, ...]) -> None:
        """From now on ``bit`` stands for ``request``."""
        self._known[request.name] = (bit, request)
        self._rows[bit] = rows

    def begin(self, generation: int) -> bool:
        """Forgets everything if ``generation`` is a new one, and says so."""
        if generation == self.generation:
            return False
        self.generation = generation
        self._known.clear()
        self._rows.clear()
        return True
