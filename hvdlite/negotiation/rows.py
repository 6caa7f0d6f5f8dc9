"""Distribution of rows in collectives whose ranks contribute or receive different numbers of them.

Two things have numbers of rows. What ranks *agree* about, `Rows`, is by rank what each gives for an allgather and a
gather, what each gets for a scatter, and for an alltoall what each sends to each, the ranks' splits one after the
other; it is empty where all ranks have tensors of one shape. What *moves* is derived from it: by the rank that gives it
where every rank gets all of it, by the rank that gets it where it is reduced, and otherwise from each rank to each, by
sender. The table in `hvdlite.negotiation.kinds` says which of these a kind of collective has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hvdlite.negotiation.messages import Request

Rows = tuple[int, ...]


class Alike:
    """All ranks have tensors of one shape, which may have no dimensions."""

    def agreed(self, requests: Sequence[Request]) -> Rows:
        """Returns the agreed rows of all ranks' ``requests``, which have been found to match."""
        return ()

    def of_rank(self, request: Request, rows: Rows, rank: int) -> Request:
        """Reconstructs the request of ``rank`` from that of any rank and the agreed rows."""
        return request

    def fit(self, request: Request, rank: int, size: int) -> bool:
        """True if the shape and the splits of ``request`` are valid for ``rank`` of ``size``."""
        return not request.splits


class AlikeInRows(Alike):
    """All ranks have tensors of one shape, whose rows are divided among them."""

    def fit(self, request: Request, rank: int, size: int) -> bool:
        return bool(request.shape) and not request.splits


class Given(AlikeInRows):
    """Each rank contributes any number of rows."""

    def agreed(self, requests: Sequence[Request]) -> Rows:
        return tuple(request.shape[0] for request in requests)

    def of_rank(self, request: Request, rows: Rows, rank: int) -> Request:
        return request._replace(shape=(rows[rank], *request.shape[1:]))


class Split(Alike):
    """Each rank splits its rows among all of them."""

    def agreed(self, requests: Sequence[Request]) -> Rows:
        return tuple(count for request in requests for count in request.splits)

    def of_rank(self, request: Request, rows: Rows, rank: int) -> Request:
        size = math.isqrt(len(rows))
        return _with_splits(request, rows[rank * size : (rank + 1) * size])

    def fit(self, request: Request, rank: int, size: int) -> bool:
        shape, splits = request.shape, request.splits
        return bool(shape) and len(splits) == size and sum(splits) == shape[0]


class SplitByRoot(Split):
    """The root splits its rows among all ranks, and the others have none."""

    def agreed(self, requests: Sequence[Request]) -> Rows:
        return requests[requests[0].root].splits

    def of_rank(self, request: Request, rows: Rows, rank: int) -> Request:
        return _with_splits(request, rows if rank == request.root else ())

    def fit(self, request: Request, rank: int, size: int) -> bool:
        if rank == request.root:
            return super().fit(request, rank, size)
        return request.shape[:1] == (0,) and not request.splits


def _with_splits(request: Request, splits: Rows) -> Request:
    return request._replace(shape=(sum(splits), *request.shape[1:]), splits=splits)


# ---- what moves, for a request of any rank of ``size`` and the rows that were agreed


def as_agreed(request: Request, rows: Rows, size: int) -> Rows:
    """The agreed rows, unchanged."""
    return rows


def evenly(request: Request, rows: Rows, size: int) -> Rows:
    """A nearly equal part for each rank."""
    return even_splits(request.shape[0], size)


def all_of_root(request: Request, rows: Rows, size: int) -> Rows:
    """All rows at the root."""
    return _only(request.root, _length(request), size)


def to_root(request: Request, rows: Rows, size: int) -> Rows:
    """The rows of each rank, sent to the root."""
    return tuple(count for given in rows for count in _only(request.root, given, size))


def from_root(request: Request, rows: Rows, size: int) -> Rows:
    """The rows of the root, divided among the ranks."""
    before, behind = request.root * size, (size - 1 - request.root) * size
    return (0,) * before + rows + (0,) * behind


def to_peer(request: Request, rows: Rows, size: int) -> Rows:
    """The rows of one rank, sent to one other."""
    return _only(request.root * size + request.peer, _length(request), size * size)


def received_by(moved: Rows, rank: int) -> Rows:
    """The rows that ``rank`` gets from each rank, where ``moved`` is from each rank to each."""
    return moved[rank :: math.isqrt(len(moved))]


def even_splits(rows: int, size: int) -> Rows:
    """``rows`` divided among ``size`` ranks; the first ones get one more where it does not come out even."""
    each, more = divmod(rows, size)
    return (each + 1,) * more + (each,) * (size - more)


def _length(request: Request) -> int:
    """Returns the number of rows: one for a tensor without dimensions."""
    return math.prod(request.shape[:1])


def _only(index: int, count: int, size: int) -> Rows:
    return (0,) * index + (count,) + (0,) * (size - index - 1)
