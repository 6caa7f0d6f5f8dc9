"""All-gather and its case broadcast on every plane: uneven and empty streams, many spans, in place or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hvdlite.planes.base import DataPlane
from hvdlite.tensors.buffer import Spans
from tests.contract.planes import Group, receiving, spans_of

Array = npt.NDArray[Any]


def contribution(rank: int, nbytes: int) -> Array:
    return np.random.default_rng(100 + rank).integers(0, 256, nbytes, dtype=np.uint8)


def assert_gathered(group: Group, lengths: list[int], in_place: bool) -> None:
    """Every rank ends with the contributions of all, where rank r gives ``lengths[r]`` bytes."""

    def work(plane: DataPlane) -> Array:
        outputs = [np.zeros(nbytes, np.uint8) for nbytes in lengths]
        own = contribution(plane.rank, lengths[plane.rank])
        if in_place:
            outputs[plane.rank] = own
        streams = [receiving(output) for output in outputs]
        streams[plane.rank] = spans_of((own, outputs[plane.rank]))
        plane.allgather(streams)
        return np.concatenate(outputs)

    expected = np.concatenate([contribution(rank, nbytes) for rank, nbytes in enumerate(lengths)])
    for rank, output in enumerate(group.run(work)):
        np.testing.assert_array_equal(output, expected, err_msg=f"rank {rank} of {lengths}")


@pytest.mark.parametrize("in_place", [True, False])
def test_even_streams(group: Group, in_place: bool) -> None:
    for nbytes in (0, 1, 3, 4096, 4097, 123_457):
        assert_gathered(group, [nbytes] * group.size, in_place)


@pytest.mark.parametrize("in_place", [True, False])
def test_uneven_and_empty_streams(group: Group, in_place: bool) -> None:
    lengths = [70_001, 0, 1, 4096, 12_289, 64][: group.size]
    assert_gathered(group, lengths, in_place)
    assert_gathered(group, lengths[::-1], in_place)


def test_broadcast_from_each_root(group: Group) -> None:
    for root in range(group.size):
        assert_gathered(group, [100_003 if rank == root else 0 for rank in range(group.size)], in_place=True)


def test_streams_of_many_spans(group: Group) -> None:
    rows = [[0, 5, 4096, 0, 1], [], [9000, 1], [1] * 500, [0, 0], [65, 0, 63]][: group.size]

    def work(plane: DataPlane) -> list[Array]:
        outputs = [[np.zeros(nbytes, np.uint8) for nbytes in lengths] for lengths in rows]
        streams: list[Spans] = [receiving(*arrays) for arrays in outputs]
        own = [np.full(nbytes, 10 * plane.rank + i % 7, np.uint8) for i, nbytes in enumerate(rows[plane.rank])]
        streams[plane.rank] = spans_of(*zip(own, outputs[plane.rank], strict=True))
        plane.allgather(streams)
        return [array for arrays in outputs for array in arrays]

    expected = [(nbytes, 10 * rank + i % 7) for rank, row in enumerate(rows) for i, nbytes in enumerate(row)]
    for outputs in group.run(work):
        for output, (nbytes, value) in zip(outputs, expected, strict=True):
            assert output.tobytes() == bytes([value]) * nbytes


def test_no_streams_is_nothing_to_do(group: Group) -> None:
    group.run(lambda plane: plane.allgather([spans_of()] * plane.size))
