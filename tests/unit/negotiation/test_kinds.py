"""The table of the kinds of collectives: it has all of them, and its rows are right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hvdlite.negotiation.agree import disagreement, is_well_formed
from hvdlite.negotiation.kinds import KINDS, Row
from hvdlite.negotiation.messages import Kind, Request
from hvdlite.negotiation.rows import received_by
from hvdlite.tensors.dtypes import Average
from tests.unit.replicas import request

SIZES = (1, 2, 3, 5)


def test_each_kind_has_its_row_at_its_number() -> None:
    assert [row.kind for row in KINDS] == sorted(Kind)
    assert [int(row.kind) for row in KINDS] == list(range(len(KINDS)))


@pytest.mark.parametrize("row", KINDS, ids=lambda row: str(row.kind))
def test_what_a_kind_runs_as_runs_as_itself(row: Row) -> None:
    assert KINDS[row.runs_as].runs_as is row.runs_as
    assert KINDS[row.runs_as].reduces == row.reduces


# The rows of rank `r` of `size`, as users give them: different on all ranks, and none on one of them.
def _rows(rank: int) -> int:
    return 2 * rank


def _splits(rank: int, size: int) -> tuple[int, ...]:
    return tuple((rank + 2 * to) % 4 for to in range(size))


def _asked(kind: Kind, size: int, root: int) -> list[Request]:
    """Makes the requests of a group's ranks, with two numbers in each row."""
    changes: dict[Kind, Callable[[int], dict[str, object]]] = {
        Kind.ALLGATHER: lambda rank: dict(shape=(_rows(rank), 2)),
        Kind.GATHER: lambda rank: dict(shape=(_rows(rank), 2)),
        Kind.ALLTOALL: lambda rank: dict(shape=(sum(_splits(rank, size)), 2), splits=_splits(rank, size)),
        Kind.SCATTER: lambda rank: (
            dict(shape=(sum(_splits(rank, size)), 2), splits=_splits(rank, size))
            if rank == root
            else dict(shape=(0, 2))
        ),
    }
    change = changes.get(kind, lambda _: dict(shape=(7, 2)))
    return [request("t", kind=kind, op=Average, root=root, **change(rank)) for rank in range(size)]


def _one_root(given: Callable[[int], int], size: int, root: int) -> list[int]:
    return [given(rank) if rank == root else 0 for rank in range(size)]


MOVED: dict[Kind, Callable[[int, int], Sequence[int]]] = {
    Kind.ALLGATHER: lambda size, root: [_rows(rank) for rank in range(size)],
    Kind.BROADCAST: lambda size, root: _one_root(lambda _: 7, size, root),
    Kind.REDUCE: lambda size, root: _one_root(lambda _: 7, size, root),
    Kind.REDUCESCATTER: lambda size, root: {1: [7], 2: [4, 3], 3: [3, 2, 2], 5: [2, 2, 1, 1, 1]}[size],
    Kind.ALLTOALL: lambda size, root: [count for rank in range(size) for count in _splits(rank, size)],
    Kind.GATHER: lambda size, root: [_rows(rank) * (to == root) for rank in range(size) for to in range(size)],
    Kind.SCATTER: lambda size, root: [
        _splits(root, size)[to] * (rank == root) for rank in range(size) for to in range(size)
    ],
}


@pytest.mark.parametrize("kind", MOVED, ids=str)
def test_rows_are_agreed_about_and_move_from_and_to_the_right_ranks(kind: Kind) -> None:
    row = KINDS[kind]
    for size in SIZES:
        for root in range(size):
            requests = _asked(kind, size, root)
            assert all(is_well_formed(each, rank, size) for rank, each in enumerate(requests))
            assert disagreement(requests, range(size), range(size)) == ""
            agreed = row.extents.agreed(requests)
            for each in requests:  # that of any rank, with what was agreed, tells what all asked for
                assert [row.extents.of_rank(each, agreed, rank) for rank in range(size)] == requests
                assert list(row.moves(each, agreed, size)) == MOVED[kind](size, root)


def test_a_message_moves_between_two_ranks_only() -> None:
    for shape, count in (((), 1), ((5,), 5), ((0, 3), 0)):
        asked = request("m", kind=Kind.SEND, shape=shape, root=2, peer=1, cacheable=False)
        assert [is_well_formed(asked, rank, 3) for rank in range(3)] == [False, True, True]
        moved = KINDS[Kind.SEND].moves(asked, (), 3)
        assert [received_by(moved, rank) for rank in range(3)] == [(0, 0, 0), (0, 0, count), (0, 0, 0)]
