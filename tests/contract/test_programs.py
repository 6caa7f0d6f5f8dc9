"""Programs of collectives in random order, back to back: whatever one leaves behind must not disturb the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

from hvdlite.planes.base import DataPlane
from hvdlite.tensors.dtypes import DType, Sum
from tests.contract.planes import Group, receiving, sending, spans_of


def allreduce(plane: DataPlane, count: int, root: int) -> None:
    array = np.full(count, plane.rank + 1, np.int64)
    plane.allreduce(spans_of((array, array)), DType.INT64, Sum, 1.0, 1.0)
    assert (array == plane.size * (plane.size + 1) // 2).all()


def broadcast(plane: DataPlane, count: int, root: int) -> None:
    array = np.full(count, plane.rank + 1, np.uint8)
    streams = [receiving(array) if rank == root else spans_of() for rank in range(plane.size)]
    if plane.rank == root:
        streams[root] = spans_of((array, array))
    plane.allgather(streams)
    assert (array == root + 1).all()


def allgather(plane: DataPlane, count: int, root: int) -> None:
    gathered = np.full((plane.size, count), plane.rank, np.uint16)
    streams = [receiving(row) for row in gathered]
    streams[plane.rank] = spans_of((gathered[plane.rank], gathered[plane.rank]))
    plane.allgather(streams)
    assert (gathered == np.arange(plane.size)[:, None]).all()


def reducescatter(plane: DataPlane, count: int, root: int) -> None:
    array = np.full(count, plane.rank + 1, np.int64)
    parts = np.array_split(array, plane.size)
    own = parts[plane.rank]
    spans = [sending(part) for part in parts]
    spans[plane.rank] = spans_of((own, own))
    plane.reducescatter(spans, DType.INT64, Sum, 1.0, 1.0)
    assert (own == plane.size * (plane.size + 1) // 2).all()


def reduce_to_root(plane: DataPlane, count: int, root: int) -> None:
    array = np.full(count, plane.rank + 1, np.int64)
    parts = [spans_of()] * plane.size
    parts[root] = spans_of((array, array)) if plane.rank == root else sending(array)
    plane.reducescatter(parts, DType.INT64, Sum, 1.0, 1.0)
    assert (array == (plane.size * (plane.size + 1) // 2 if plane.rank == root else plane.rank + 1)).all()


def alltoall(plane: DataPlane, count: int, root: int) -> None:
    sent = np.full((plane.size, count), plane.rank, np.uint8)
    received = np.full_like(sent, 99)
    matrix = np.full((plane.size, plane.size), count, np.uint64)
    plane.alltoall([sending(row) for row in sent], [receiving(row) for row in received], matrix)
    assert (received == np.arange(plane.size)[:, None]).all()


def message(plane: DataPlane, count: int, root: int) -> None:
    """Sends a message from the root to its right neighbour."""
    target = (root + 1) % plane.size
    sent, received = np.full(count, root, np.uint8), np.full(count, 99, np.uint8)
    sends = [sending(sent) if (plane.rank, rank) == (root, target) else spans_of() for rank in range(plane.size)]
    receives = [
        receiving(received) if (rank, plane.rank) == (root, target) else spans_of() for rank in range(plane.size)
    ]
    matrix = np.zeros((plane.size, plane.size), np.uint64)
    matrix[root, target] = count
    plane.alltoall(sends, receives, matrix)
    assert (received == (root if plane.rank == target else 99)).all()


def barrier(plane: DataPlane, count: int, root: int) -> None:
    plane.barrier()


COLLECTIVES: Final[tuple[Callable[[DataPlane, int, int], None], ...]] = (
    allreduce,
    broadcast,
    allgather,
    reducescatter,
    reduce_to_root,
    alltoall,
    message,
    barrier,
)


@pytest.mark.parametrize("seed", [7, 8])
def test_programs_of_mixed_collectives(group: Group, seed: int) -> None:
    """Kinds, sizes and dtypes follow each other at random; some ranks are slower than others at some steps."""

    def work(plane: DataPlane) -> None:
        program = np.random.default_rng(seed)  # the same on all ranks
        own = np.random.default_rng(plane.rank)
        for _ in range(120):
            kind, count, root = (
                program.integers(len(COLLECTIVES)),
                program.integers(1, 9000),
                program.integers(plane.size),
            )
            if own.random() < 0.2:
                np.sort(own.random(20_000))
            COLLECTIVES[kind](plane, int(count), int(root))

    group.run(work)
