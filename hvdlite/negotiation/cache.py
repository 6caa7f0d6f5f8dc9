"""The response cache: a tensor that all ranks remember takes one bit on the wire.

Every rank has a `Cache`, from names to bits and the rank's own requests. It changes only when a response is processed.
Every rank processes the same responses in the same order, so bits have the same meaning on all ranks, and all ranks cut
the same bits into the same batches. The root has further `Definitions` of its own, because it knows a tensor as soon as
it has answered.

When the table is full, the root starts a new *generation*: all ranks forget everything at the same run. The root keeps
the older tables, to read bits of older generations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from hvdlite.negotiation.kinds import KINDS
from hvdlite.negotiation.messages import Kind, Request
from hvdlite.negotiation.rows import Rows
from hvdlite.negotiation.unnamed import is_signed
from hvdlite.tensors.device import CPU
from hvdlite.tensors.dtypes import Average, ElementType, Sum


class FuseKey(NamedTuple):
    """The parts of a request that the call of the plane depends on. Tensors with equal keys may share a batch."""

    runs_as: Kind
    device: str = CPU.kind
    dtype: ElementType | None = None
    op: int = Sum
    prescale: float = 1.0
    postscale: float = 1.0
    name: str = ""


def fuse_key(request: Request) -> FuseKey:
    row, device = KINDS[request.kind], request.device.kind
    if row.reduces:
        return FuseKey(row.runs_as, device, request.dtype, request.op, request.prescale, request.postscale)
    if row.has_tensor:
        return FuseKey(row.runs_as, device)  # bytes, whatever their type
    return FuseKey(row.runs_as, name=request.name)


def runs_with_joined_ranks(key: FuseKey) -> bool:
    """True if joined ranks can contribute zeros, which change no sum."""
    return KINDS[key.runs_as].zeros_for_joined and key.op in (Sum, Average)


class Definition(NamedTuple):
    """An agreed tensor: the request of one rank, and the rows that all ranks agreed on (`hvdlite.negotiation.rows`).

    ``nbytes`` and the fuse key of the request do not depend on the rank.
    """

    request: Request
    rows: Rows

    def of_rank(self, rank: int) -> Request:
        """Returns the request that ``rank`` made."""
        return KINDS[self.request.kind].extents.of_rank(self.request, self.rows, rank)

    @property
    def nbytes(self) -> int:
        """Size of the result in bytes."""
        shape = self.request.shape
        elements = sum(self.rows) * math.prod(shape[1:]) if self.rows else math.prod(shape)
        return elements * self.request.dtype.itemsize


class FuseClass:
    """The cached tensors that share a fuse key: their bits, and the sum of their bytes."""

    __slots__ = ("bits", "nbytes")

    def __init__(self) -> None:
        self.bits = 0
        self.nbytes = 0


class Definitions:
    """The table of one generation: from bits to definitions, with the bits of each fuse class."""

    def __init__(self, capacity: int = 0) -> None:
        self._capacity = capacity
        self._rows: dict[int, Definition] = {}
        self._bit_of: dict[str, int] = {}
        self.classes: dict[FuseKey, FuseClass] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, bit: int) -> Definition:
        return self._rows[bit]

    def get(self, bit: int) -> Definition | None:
        return self._rows.get(bit)

    def rows_of(self, bits: Iterable[int]) -> list[Rows]:
        """Returns the agreed rows of each bit."""
        known = self._rows
        return [known[bit].rows for bit in bits]

    @property
    def is_full(self) -> bool:
        return len(self._rows) >= self._capacity

    def bit_of(self, name: str) -> int:
        """Returns the bit of ``name``, or -1."""
        return self._bit_of.get(name, -1)

    def add(self, definition: Definition) -> int:
        """Remembers a new name and returns its bit."""
        bit = len(self._rows)
        self._bit_of[definition.request.name] = bit
        self.set(bit, definition)
        return bit

    def set(self, bit: int, definition: Definition) -> None:
        """Gives ``bit`` a meaning, or a new one under the same name."""
        if (earlier := self._rows.get(bit)) is not None:
            self._count(bit, earlier, -1)
        self._rows[bit] = definition
        self._count(bit, definition, 1)

    def _count(self, bit: int, definition: Definition, sign: int) -> None:
        fused = self.classes.setdefault(fuse_key(definition.request), FuseClass())
        fused.bits ^= 1 << bit
        fused.nbytes += sign * definition.nbytes


@dataclass(frozen=True, slots=True)
class Known:
    """A remembered tensor on one rank. ``bit`` stands for exactly this request."""

    bit: int
    request: Request
    nbytes: int


class Cache:
    """The tensors that one rank remembers, by name (``known``) and by bit (``definitions``).

    ``unnamed`` has those with a signed name (`hvdlite.negotiation.unnamed`) by their description, the fields of a
    request from the kind to the root. Threads that submit read both, to reuse request objects.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.known: dict[str, Known] = {}
        self.unnamed: dict[tuple[Any, ...], Known] = {}
        self.definitions = Definitions()
        self._knows_unnamed = True

    def bit_of_name(self, name: str) -> int:
        """Returns the bit of ``name``, or -1."""
        known = self.known.get(name)
        return -1 if known is None else known.bit

    def remember(self, bit: int, request: Request, rows: Rows) -> None:
        """Makes ``bit`` stand for ``request``."""
        self.definitions.set(bit, Definition(request, rows))  # first: a thread that reads ``known`` finds it
        self.known[request.name] = known = Known(bit, request, request.nbytes)
        if self._knows_unnamed and is_signed(request):
            self.unnamed[request[1:8]] = known

    def forget_unnamed(self) -> None:
        """Forgets the tensors without a name until `know_unnamed`."""
        self._knows_unnamed = False
        self.unnamed.clear()

    def know_unnamed(self) -> None:
        """Takes back `forget_unnamed`."""
        if not self._knows_unnamed:
            self._knows_unnamed = True
            self.unnamed.update(
                (known.request[1:8], known) for known in self.known.values() if is_signed(known.request)
            )

    def begin(self, generation: int) -> bool:
        """Forgets everything if ``generation`` is new. True if it is."""
        if generation == self.generation:
            return False
        self.generation = generation
        self.known.clear()
        self.unnamed.clear()
        self.definitions = Definitions()
        return True
