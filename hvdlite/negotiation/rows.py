"""Numbers of rows: how ranks agree about them, and how many rows move between ranks.

The *agreed* rows of a collective are

- for allgather and gather: the number of rows of each rank's tensor;
- for scatter: the number of rows that each rank receives;
- for alltoall: the splits of all ranks, one rank after the other;
- for all others, in which the tensors of all ranks have one shape: empty.

The rows that *move* are computed from the request and the agreed rows. As a plane's all-gather needs them, they are the
rows of each rank; for a reduce-scatter, the rows that each rank receives; for an all-to-all, the rows from each rank to
each rank, ordered by sender.

The table in `hvdlite.negotiation.kinds` names the functions here that each kind of collective uses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hvdlite.negotiation.messages import Request

Rows = tuple[int, ...]


class Alike:
    """The tensors of all ranks have one shape, which may have no dimensions."""

    def agreed(self, requests: Sequence[Request]) -> Rows:
        """Returns the agreed rows of ``requests``, which match and are in rank order."""
        return ()

    def of_rank(self, request: Request, rows: Rows, rank: int) -> Request:
        """Returns the request of ``rank``, given the request of any rank and the agreed rows."""
        return request

    def fit(self, request: Request, rank: int, size: int) -> bool:
        """True if the shape and the splits of ``request`` are valid for ``rank`` of ``size``."""
        return not request.splits


class AlikeInRows(Alike):
    """The tensors of all ranks have one shape, and their rows are divided among the ranks."""

    def fit(self, request: Request, rank: int, size: int) -> bool:
        return bool(request.shape) and not request.splits


class Given(AlikeInRows):
    """Each rank contributes any number of rows."""

    def agreed(self, requests: Sequence[Request]) -> Rows:
        return tuple(request.shape[0] for request in requests)

    def of_rank(self, request: Request, rows: Rows, rank: int) -> Request:
        return request._replace(shape=(rows[rank], *request.shape[1:]))


class Split(Alike):
    """Each rank splits its rows among all ranks."""

    def agreed(self, requests: Sequence[Request]) -> Rows:
        return tuple(count for request in requests for count in request.splits)

    def of_rank(self, request: Request, rows: Rows, rank: int) -> Request:
        size = math.isqrt(len(rows))
        return _with_splits(request, rows[rank * size : (rank + 1) * size])

    def fit(self, request: Request, rank: int, size: int) -> bool:
        shape, splits = request.shape, request.splits
        return bool(shape) and len(splits) == size and sum(splits) == shape[0]


class SplitByRoot(Split):
    """The root splits its rows among all ranks, and the other ranks have no rows."""

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


# ---- the rows that move, given the request of any rank, the agreed rows, and the number of ranks


def as_agreed(request: Request, rows: Rows, size: int) -> Rows:
    """Returns the agreed rows."""
    return rows


def evenly(request: Request, rows: Rows, size: int) -> Rows:
    """Returns a nearly equal part for each rank."""
    return even_splits(request.shape[0], size)


def all_of_root(request: Request, rows: Rows, size: int) -> Rows:
    """Returns all rows for the root, and none for the other ranks."""
    return _only(request.root, _length(request), size)


def to_root(request: Request, rows: Rows, size: int) -> Rows:
    """Returns the rows of each rank, sent to the root."""
    return tuple(count for given in rows for count in _only(request.root, given, size))


def from_root(request: Request, rows: Rows, size: int) -> Rows:
    """Returns the agreed rows, sent by the root."""
    before, behind = request.root * size, (size - 1 - request.root) * size
    return (0,) * before + rows + (0,) * behind


def to_peer(request: Request, rows: Rows, size: int) -> Rows:
    """Returns the rows of the root, sent to the peer."""
    return _only(request.root * size + request.peer, _length(request), size * size)


def received_by(moved: Rows, rank: int) -> Rows:
    """Returns the rows that ``rank`` receives from each rank; ``moved`` are the rows from each rank to each rank."""
    return moved[rank :: math.isqrt(len(moved))]


def even_splits(rows: int, size: int) -> Rows:
    """Divides ``rows`` among ``size`` ranks. If that leaves a remainder, each of the first ranks gets one row more."""
    each, more = divmod(rows, size)
    return (each + 1,) * more + (each,) * (size - more)


def _length(request: Request) -> int:
    """Returns the number of rows; a tensor without dimensions counts as one row."""
    return math.prod(request.shape[:1])


def _only(index: int, count: int, size: int) -> Rows:
    return (0,) * index + (count,) + (0,) * (size - index - 1)
