"""What ranks tell each other: requests go up to the root, responses come down from it."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from hvdlite.core.dtypes import DType


class Kind(IntEnum):
    """The collective that a request asks for."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    BARRIER = 3

    def __str__(self) -> str:
        return self.name.lower()


class Request(NamedTuple):
    """One rank's description of one tensor. Equal requests can be told apart from new ones by one bit."""

    name: str
    kind: Kind
    dtype: DType
    shape: tuple[int, ...]
    op: int
    prescale: float
    postscale: float
    root: int
    cacheable: bool


class Response(NamedTuple):
    """What all ranks agreed about one name.

    ``error`` is empty or why the ranks disagree. ``rows`` are the first dimensions by rank of an allgather. ``bit`` is
    the number under which every rank remembers the tensor from now on, or -1.
    """

    name: str
    error: str
    rows: tuple[int, ...]
    bit: int


class Batch(NamedTuple):
    """Tensors that run as one: those of the cached ``bits`` in ascending order, then those of ``responses``."""

    bits: int
    responses: tuple[Response, ...]


class Ready(NamedTuple):
    """A rank's news for the root: tensors that became ready, known ones as bits of cache ``generation``."""

    generation: int
    bits: int
    requests: tuple[Request, ...]


class Run(NamedTuple):
    """The root's decision: batches to run in this order, beginning with cache ``generation``."""

    generation: int
    batches: tuple[Batch, ...]


class EndKind(IntEnum):
    """Why a session ends."""

    LEFT = 0  # a rank called shutdown
    LOST = 1  # a rank died or went silent
    STALLED = 2  # a tensor was missing for too long
    FAILED = 3  # a data plane or a rank's coordinator failed


class End(NamedTuple):
    """The end of the session, or of one rank's part in it: which rank caused it, where, and why.

    ``missing`` is for STALLED only: pairs of a rank and a name that it never submitted.
    """

    kind: EndKind
    rank: int
    host: str
    cause: str
    waited_s: float = 0.0
    missing: tuple[tuple[int, str], ...] = ()
