"""Which rows of a tensor go where, in collectives whose ranks give or get different numbers of them.

The requests of all ranks are kept as one of them and the *rows*: by rank what each gives for an allgather and a gather,
what each gets for a scatter, and for an alltoall what each sends to each, the ranks' splits one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hvdlite.negotiation.messages import EMPTY_GROUP, JOIN_NAME, REDUCTIONS, Kind, Request
from hvdlite.tensors.dtypes import Adasum, Average, Sum, added_as, is_complex


def rows_of(requests: Sequence[Request]) -> tuple[int, ...]:
    """The rows that ``requests`` of all ranks, which fit together, amount to; empty for kinds without."""
    kind = requests[0].kind
    if kind in (Kind.ALLGATHER, Kind.GATHER):
        return tuple(request.shape[0] for request in requests)
    if kind is Kind.SCATTER:
        return requests[requests[0].root].splits
    if kind is Kind.ALLTOALL:
        return tuple(count for request in requests for count in request.splits)
    return ()


def request_of_rank(request: Request, rows: tuple[int, ...], rank: int) -> Request:
    """What ``rank`` asked for, given the request of any rank and the rows."""
    if not rows:
        return request
    rest = request.shape[1:]
    if request.kind is Kind.ALLTOALL:
        splits = splits_of(rows, rank)
        return request._replace(shape=(sum(splits), *rest), splits=splits)
    if request.kind is Kind.SCATTER:
        splits = rows if rank == request.root else ()
        return request._replace(shape=(sum(splits), *rest), splits=splits)
    return request._replace(shape=(rows[rank], *rest))


def splits_of(rows: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The rows that ``rank`` sends to each rank in an alltoall."""
    size = _size_of(rows)
    return rows[rank * size : (rank + 1) * size]


def received_by(rows: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The rows that ``rank`` gets from each rank in an alltoall."""
    return rows[rank :: _size_of(rows)]


def even_splits(rows: int, size: int) -> tuple[int, ...]:
    """``rows`` divided among ``size`` ranks; the first ones get one more where it does not come out even."""
    each, more = divmod(rows, size)
    return (each + 1,) * more + (each,) * (size - more)


def is_well_formed(request: Request, rank: int, size: int) -> bool:
    """Whether ``rank`` of a group of ``size`` can have meant ``request``: what the wire's checks cannot know."""
    kind, shape, splits = request.kind, request.shape, request.splits
    if request.root >= size or (kind is not Kind.SEND and request.peer != -1):
        return False
    if (kind is Kind.JOIN) != (request.name == JOIN_NAME) or (kind in _NOT_BY_ALL and request.cacheable):
        return False
    if request.group_length and not _is_in_group(request):
        return False
    if request.op == Adasum and not (kind is Kind.ALLREDUCE and request.dtype.is_floating):
        return False
    if kind in REDUCTIONS and (
        added_as(request.dtype) is None or (is_complex(request.dtype) and request.op not in (Sum, Average))
    ):
        return False
    if kind is Kind.SEND:
        return 0 <= request.peer < size and request.root != request.peer and rank in (request.root, request.peer)
    if kind is Kind.ALLTOALL or (kind is Kind.SCATTER and rank == request.root):
        return bool(shape) and len(splits) == size and sum(splits) == shape[0]
    if splits:
        return False
    if kind is Kind.SCATTER:
        return bool(shape) and shape[0] == 0
    return bool(shape) or kind not in (Kind.ALLGATHER, Kind.GATHER, Kind.REDUCESCATTER)


def _is_in_group(request: Request) -> bool:
    _, bracket, rest = request.name.rpartition("[")
    number = rest[:-1]
    if request.group_length == EMPTY_GROUP:
        return bool(bracket) and rest == "0]" and request.kind is Kind.ALLREDUCE and request.nbytes == 0
    return bool(bracket) and rest[-1:] == "]" and number.isdecimal() and int(number) < request.group_length


_NOT_BY_ALL = (Kind.SEND, Kind.JOIN)  # a bit stands for what all ranks submit


def _size_of(rows: tuple[int, ...]) -> int:
    return math.isqrt(len(rows))
