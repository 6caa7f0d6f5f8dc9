"""Messages between ranks: every rank sends requests to the root, and the root sends responses.

Classes with objects in every step have slots, because a named tuple takes longer to make and to read. Nobody changes
an object after it is sent.
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
    SEND = 9  # on the sender and on the receiver
    JOIN = 10

    def __str__(self) -> str:
        return self.name.lower()


JOIN_NAME = "hvdlite.join"
BARRIER_NAME = "hvdlite.barrier"

EMPTY_GROUP = -1


class Request(NamedTuple):
    """One rank's description of one tensor.

    - ``root``: the root of a collective that has one, or the sender of a SEND. Ranks are group indices.
    - ``cacheable``: ranks may remember the tensor under a bit.
    - ``splits``: the numbers of rows that this rank sends to each rank, in an alltoall or a scatter.
    - ``peer``: the receiver of a SEND, or -1.
    - ``group_length``: the number of tensors that were submitted as one list, under the names ``group_name[0]``,
      ``group_name[1]`` and so on; 0 for a tensor outside of a list. For an empty list a rank submits a placeholder: an
      all-reduce of no elements under the first of these names, with EMPTY_GROUP.
    - ``device``: the device of this rank's tensor. Its kind must be the same on all ranks, its number need not.
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

    - ``error``: why the tensor cannot run, or an empty string.
    - ``rows``: the agreed rows, as in `Definition`.
    - ``bit``: the number under which every rank remembers the tensor from now on, or -1.
    - ``request``: describes the tensor to ranks that did not submit it; None if all ranks did.
    - ``is_blank``: no rank had a value for the tensor.

    With an error, ``bit`` is the bit that the name already has, or -1: ranks may have submitted that bit. ``rows`` are
    then the ranks that submitted the tensor, or empty if all ranks did. Another rank may have submitted it since.
    """

    name: str
    error: str
    rows: tuple[int, ...]
    bit: int
    request: Request | None = None
    is_blank: bool = False

    def fails(self, rank: int) -> bool:
        """For an error: True if ``rank`` had submitted the tensor."""
        return self.request is None or rank in self.rows


@dataclass(slots=True)
class Batch:
    """Tensors that run as one: the cached tensors of ``bits`` in ascending order, then the tensors of ``responses``."""

    bits: int
    responses: tuple[Response, ...]


@dataclass(slots=True)
class Ready:
    """A rank's news for the root: tensors that became ready, known ones as bits of cache ``generation``.

    The rank has no value for *blank* tensors, and contributes zeros. ``blank_bits`` is the subset of ``bits`` of blank
    tensors, and ``blank_requests`` the set of the indices of blank requests. ``closings``: how often the rank has
    closed the page of its group (`hvdlite.control.page`).
    """

    generation: int
    bits: int
    requests: tuple[Request, ...]
    blank_bits: int = 0
    blank_requests: int = 0
    closings: int = 0


class News(NamedTuple):
    """News that several ranks of one host have in common. The last of ``ranks`` was ready last."""

    ranks: tuple[int, ...]
    ready: Ready


class Gathered(NamedTuple):
    """The news of one host, in order of arrival. The first rank of the host sends them to the root."""

    news: tuple[News, ...]


class Tuning(NamedTuple):
    """Parameters that the root chooses, and may change while the group runs. They are the same on all ranks.

    A batch of several tensors has at most ``fusion_threshold`` bytes. The root holds agreed tensors back for ``hold_s``
    seconds, so that more of them fuse.
    """

    fusion_threshold: int
    hold_s: float = 0.0


@dataclass(slots=True)
class Run:
    """The root's decision: batches to run in this order, with the bits of cache ``generation``.

    ``blank_bits`` are the known tensors in these batches for which no rank had a value. ``tuning`` applies from this
    run on; None if it has not changed. After a run that ``opens`` the page, ranks agree there again.
    """

    generation: int
    batches: tuple[Batch, ...]
    blank_bits: int = 0
    tuning: Tuning | None = None
    opens: bool = False

    @property
    def bits(self) -> int:
        """The bits of all answered tensors, including the bits that ranks remember from now on."""
        bits = 0
        for batch in self.batches:
            bits |= batch.bits
            for response in batch.responses:
                if response.bit >= 0:
                    bits |= 1 << response.bit
        return bits


class Common(NamedTuple):
    """A decision of the page: all ranks have submitted the known tensors of ``bits``.

    No rank has a value for ``blank_bits``. All ranks have put the bytes of ``carried_bits``, one tensor at most, into
    the page.
    """

    bits: int
    blank_bits: int
    carried_bits: int = 0


class EndKind(IntEnum):
    """The reason why a group ends."""

    LEFT = 0  # a rank called shutdown
    LOST = 1  # a rank died or went silent
    STALLED = 2  # a tensor was missing for too long
    FAILED = 3  # a data plane or a rank's coordinator failed
    REMOVED = 4  # a rank removed the process set
    EXITED = 5  # the process is about to exit; the other ranks go on until they notice that it has
    FORKED = 6  # the process was forked from a rank, and has none of its threads
    GONE = 7  # a rank's process has ended, after all that the rank had agreed to


UNSENT = frozenset({EndKind.FORKED})
"""The ends that concern this process alone. No message has them."""

ORDERLY = frozenset({EndKind.LEFT, EndKind.REMOVED})
"""The ends that the root decides like a run."""

STILL_RUN = ORDERLY | {EndKind.GONE}
"""The ends after which ranks still run the batches that were agreed before."""


class End(NamedTuple):
    """The end of a group, or of one rank's part in it: which rank caused it, on which host, and why.

    Ranks are numbers in the job, so that one group can pass its end on to another. ``waited_s`` and ``missing`` are for
    STALLED only: ``missing`` has pairs of a rank and a name that the rank did not submit within ``waited_s``.
    """

    kind: EndKind
    rank: int
    host: str
    cause: str
    waited_s: float = 0.0
    missing: tuple[tuple[int, str], ...] = ()
