"""All-to-all and its cases gather, scatter and message on every plane: cells of any length, rows cut at will."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hvdlite.errors import HorovodInternalError
from hvdlite.planes.base import DataPlane
from hvdlite.tensors.buffer import Matrix
from tests.contract.planes import Group, receiving, sending, spans_of

Array = npt.NDArray[Any]


def cell(sender: int, receiver: int, nbytes: int) -> Array:
    """The bytes that one rank sends to another, different for each pair."""
    return np.random.default_rng((sender, receiver)).integers(0, 256, nbytes, dtype=np.uint8)


def square(rows: Sequence[Sequence[int]], size: int) -> Matrix:
    return np.array(rows, np.uint64)[:size, :size].copy()


def cut(array: Array, rng: np.random.Generator) -> list[Array]:
    """Pieces of random lengths, some empty."""
    return np.split(array, np.sort(rng.integers(0, len(array) + 1, rng.integers(0, 6))))


def assert_exchanged(group: Group, matrix: Matrix, is_cut: bool = False) -> None:
    """Each rank gets its column of cells, and what it sent stays as it was."""

    def work(plane: DataPlane) -> list[Array]:
        rng = np.random.default_rng(plane.rank)
        sent = [cell(plane.rank, peer, int(n)) for peer, n in enumerate(matrix[plane.rank])]
        received = [np.zeros(int(n), np.uint8) for n in matrix[:, plane.rank]]
        before = [array.copy() for array in sent]
        reads = [cut(array, rng) if is_cut else [array] for array in sent]
        writes = [cut(array, rng) if is_cut else [array] for array in received]
        plane.alltoall([sending(*rows) for rows in reads], [receiving(*rows) for rows in writes], matrix)
        for array, unchanged in zip(sent, before, strict=True):
            np.testing.assert_array_equal(array, unchanged)
        return received

    for receiver, received in enumerate(group.run(work)):
        for sender, array in enumerate(received):
            expected = cell(sender, receiver, int(matrix[sender, receiver]))
            np.testing.assert_array_equal(array, expected, err_msg=f"{sender} to {receiver} of {matrix.tolist()}")


@pytest.mark.parametrize("is_cut", [False, True])
def test_even_cells(group: Group, is_cut: bool) -> None:
    for nbytes in (0, 1, 3, 64, 1365, 4096, 4097, 50_001):
        assert_exchanged(group, np.full((group.size, group.size), nbytes, np.uint64), is_cut)


@pytest.mark.parametrize("is_cut", [False, True])
def test_uneven_and_empty_cells(group: Group, is_cut: bool) -> None:
    rng = np.random.default_rng(5)
    for longest in (2, 100, 5000, 40_000):
        matrix = rng.integers(0, longest, (6, 6)) * rng.integers(0, 2, (6, 6))
        assert_exchanged(group, square(matrix.tolist(), group.size), is_cut)


def test_gather_and_scatter_at_each_root(group: Group) -> None:
    for root in range(group.size):
        lengths = np.array([30_000, 1, 0, 8192, 4097, 64], np.uint64)[: group.size]
        gather, scatter = np.zeros((2, group.size, group.size), np.uint64)
        gather[:, root] = lengths
        scatter[root] = lengths
        assert_exchanged(group, gather)
        assert_exchanged(group, scatter)


def test_a_message_from_each_rank_to_each(group: Group) -> None:
    for sender in range(group.size):
        for receiver in range(group.size):
            matrix = np.zeros((group.size, group.size), np.uint64)
            matrix[sender, receiver] = 20_001
            assert_exchanged(group, matrix)


def test_one_huge_cell_beside_tiny_ones(group: Group) -> None:
    matrix = np.ones((group.size, group.size), np.uint64)
    matrix[0, -1] = 300_007
    assert_exchanged(group, matrix, is_cut=True)


def test_many_small_rows(trio: Group) -> None:
    matrix = np.full((3, 3), 3000 * 5, np.uint64)

    def work(plane: DataPlane) -> Array:
        sent = np.full((3, 3000, 5), plane.rank + 1, np.uint8)
        received = np.zeros((3, 1500, 10), np.uint8)
        plane.alltoall([sending(*rows) for rows in sent], [receiving(*rows) for rows in received], matrix)
        return received

    for received in trio.run(work):
        assert (received == np.array([1, 2, 3])[:, None, None]).all()


def test_nothing_to_send_is_nothing_to_do(group: Group) -> None:
    nothing, matrix = [spans_of()] * group.size, np.zeros((group.size, group.size), np.uint64)
    group.run(lambda plane: plane.alltoall(nothing, nothing, matrix))


def test_spans_that_are_not_as_the_matrix_says_are_refused(group: Group) -> None:
    """Before anything is read, written or waited for: no peer takes part."""
    refused = (ValueError, HorovodInternalError)
    eight, nine = np.zeros(8, np.uint8), np.zeros(9, np.uint8)
    matrix = np.full((group.size, group.size), 8, np.uint64)
    sends, receives = [sending(eight)] * group.size, [receiving(eight)] * group.size
    for plane in group.planes:
        for rank in range(group.size):
            longer_sends, longer_receives = sends.copy(), receives.copy()
            longer_sends[rank], longer_receives[rank] = sending(nine), receiving(nine)
            with pytest.raises(refused):
                plane.alltoall(longer_sends, receives, matrix)
            with pytest.raises(refused):
                plane.alltoall(sends, longer_receives, matrix)
