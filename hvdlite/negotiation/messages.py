"""Messages between ranks: requests are sent to the root, and responses by the root.

A class of which each step makes objects has slots, because a named tuple takes longer to make and to read. Such an
object is not changed once it is sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from hvdlite.tensors.device import CPU, Device
from hvdlite.tensors.dtypes import ElementType


class Kind(IntEnum):
    """The collective that a request asks for; `hvdlite.negotiation.kinds` describes each of them."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    BARRIER = 3
    REDUCESCATTER = 4
    ALLTOALL = 5
    REDUCE = 6
    GATHER = 7
    SCATTER = 8
    SEND = 9  # and the receive that belongs to it
    JOIN = 10

    def __str__(self) -> str:
        return self.name.lower()


JOIN_NAME = "hvdlite.join"

EMPTY_GROUP = -1


class Request(NamedTuple):
    """One rank's description of one tensor.

    ``root`` is the root, or the sender, of a collective that has one; ``splits`` are the rows that this rank sends to
    each rank in an alltoall or a scatter; ``peer`` is the receiver of a SEND, in which only these two ranks take part.
    Ranks are counted within the group. ``group_length`` is the number of tensors that were submitted as one list, under
    the names ``group_name[0]``, ``group_name[1]`` and so on; it is 0 for a tensor outside of a list. An empty list
    still submits one placeholder: an all-reduce of no elements under the first of these names, with EMPTY_GROUP.
    ``device`` is this rank's own; ranks agree about its kind.
    """

    name: str
    kind: Kind
    dtype: ElementType
    shape: tuple[int, ...]
    op: int
    prescale: float
    postscale: float
    root: int
    cacheable: bool
    splits: tuple[int, ...] = ()
    peer: int = -1
    group_length: int = 0
    device: Device = CPU

    @property
    def group_name(self) -> str:
        """The name of the list in which the tensor was submitted."""
        return self.name.rpartition("[")[0]

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class Response(NamedTuple):
    """The root's answer for one name.

    ``error`` is empty or why the ranks disagree. ``rows`` are the rows that move, as in `Definition`. ``bit`` is the
    number under which every rank remembers the tensor from now on, or -1. ``request`` describes the tensor to ranks
    that take part without having submitted it; None if all ranks submitted it. ``is_blank`` is true if no rank had a
    value for the tensor.

    With an error, ``bit`` is the bit that the name already has, since ranks may have submitted that bit, or -1. Unless
    all ranks submitted the tensor, ``rows`` are then the ranks that did; another rank may have submitted it since.
    """

    name: str
    error: str
    rows: tuple[int, ...]
    bit: int
    request: Request | None = None
    is_blank: bool = False

    def fails(self, rank: int) -> bool:
        """True if this is an error and ``rank`` submitted the tensor."""
        return self.request is None or rank in self.rows


@dataclass(slots=True)
class Batch:
    """Tensors that run as one: those of the cached ``bits`` in ascending order, then those of ``responses``."""

    bits: int
    responses: tuple[Response, ...]


@dataclass(slots=True)
class Ready:
    """A rank's news for the root: tensors that became ready, known ones as bits of cache ``generation``.

    The rank has no value for *blank* tensors and contributes zeros. A known tensor is blank if its bit is set in
    ``blank_bits`` too, and a request if its index is a bit of ``blank_requests``.
    """

    generation: int
    bits: int
    requests: tuple[Request, ...]
    blank_bits: int = 0
    blank_requests: int = 0


class News(NamedTuple):
    """News that several ranks of one host have in common. The last of these ranks was ready last."""

    ranks: tuple[int, ...]
    ready: Ready


class Gathered(NamedTuple):
    """The news of one host, in the order in which they came, from its first rank to the root."""

    news: tuple[News, ...]


class Tuning(NamedTuple):
    """Quantities that the root chooses and may change while the group runs. They are the same on all ranks.

    A batch of several tensors has at most ``fusion_threshold`` bytes. Agreed tensors are held back for ``hold_s``, so
    that more of them fuse.
    """

    fusion_threshold: int
    hold_s: float = 0.0


@dataclass(slots=True)
class Run:
    """The root's decision: batches to run in this order, beginning with cache ``generation``.

    ``blank_bits`` are the known tensors in these batches for which no rank had a value. ``tuning`` applies from the
    first of these batches on; None if it has not changed.
    """

    generation: int
    batches: tuple[Batch, ...]
    blank_bits: int = 0
    tuning: Tuning | None = None

    @property
    def bits(self) -> int:
        """The bits of all tensors that are answered, including the bits that ranks remember from now on."""
        bits = 0
        for batch in self.batches:
            bits |= batch.bits
            for response in batch.responses:
                if response.bit >= 0:
                    bits |= 1 << response.bit
        return bits


class EndKind(IntEnum):
    """The reason why a group ends."""

    LEFT = 0  # a rank called shutdown
    LOST = 1  # a rank died or went silent
    STALLED = 2  # a tensor was missing for too long
    FAILED = 3  # a data plane or a rank's coordinator failed
    REMOVED = 4  # a rank removed the process set
    EXITED = 5  # the process of a rank is about to exit, which the others notice by themselves
    FORKED = 6  # this process was forked from a rank, and has none of its threads


UNSENT = frozenset({EndKind.EXITED, EndKind.FORKED})
"""The ends that are this process's own, and never in a message."""

ORDERLY = frozenset({EndKind.LEFT, EndKind.REMOVED})
"""The ends after which what was agreed before is still run."""


class End(NamedTuple):
    """The end of a group, or of one rank's part in it: which rank caused it, where, and why.

    Ranks are numbers in the job here, so that an end can go from one group to another.

    ``missing`` is for STALLED only: pairs of a rank and a name that it never submitted.
    """

    kind: EndKind
    rank: int
    host: str
    cause: str
    waited_s: float = 0.0
    missing: tuple[tuple[int, str], ...] = ()
