"""The hierarchical plane beyond the contract: its parts, waits in different ones, sums of large halves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from hvdlite.errors import HorovodInternalError, PeerLost
from hvdlite.groups.choose import choose
from hvdlite.planes import hierarchical
from hvdlite.planes.base import DataPlane
from hvdlite.planes.ring.plane import RingPlane
from hvdlite.tensors.buffer import Spans
from hvdlite.tensors.dtypes import DType, Sum
from tests.contract.joined.hierarchical import open_on
from tests.contract.planes import receiving, spans_of
from tests.harness import thread_ranks
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S


@pytest.mark.parametrize(
    ("setting", "hosts", "plane"),
    [
        ("auto", "a", "local"),
        ("auto", "aaa", "shm"),
        ("auto", "abc", "ring"),
        ("auto", "aab", "hierarchical"),
        ("auto", "abab", "hierarchical"),
        ("hierarchical", "aa", "shm"),
        ("hierarchical", "ab", "ring"),
        ("hierarchical", "a", "local"),
        ("hierarchical", "abb", "hierarchical"),
        ("ring", "aab", "ring"),
        ("ring", "a", "local"),
        ("shm", "aa", "shm"),
    ],
)
def test_the_plane_follows_from_where_the_ranks_are(setting: str, hosts: str, plane: str) -> None:
    assert choose(setting, member(0, hosts)) == plane


def test_planes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="HVDLITE_PLANE=shm needs all ranks on one host, but there are 2"):
        choose("shm", member(0, "aab"))
    with pytest.raises(ValueError, match="HVDLITE_PLANE=local is for one rank, but there are 3"):
        choose("local", member(0, "aaa"))


def test_no_two_parts_share_a_key_or_a_session() -> None:
    whole = member(0, "abab")
    parts = [
        whole.among(ranks, name)
        for name, ranks in (("shm", (0, 2)), ("ring", (0, 1)), ("ring", (0, 2, 1, 3)), ("ring", (0, 2)))
    ]
    assert len({part.key for part in (*parts, whole)}) == len({part.session for part in (*parts, whole)}) == 5
    assert {len(part.key) for part in parts} == {32}
    assert (parts[2].rank, parts[2].size, [host.id for host in parts[2].hosts]) == (0, 4, ["a", "a", "b", "b"])


def ones(plane: DataPlane) -> None:
    array = np.ones(100_000, np.float32)
    plane.allreduce(spans_of((array, array)), DType.FLOAT32, Sum, 1.0, 1.0)


def broadcast_from_2(plane: DataPlane) -> None:
    array = np.ones(100_000, np.uint8)
    plane.allgather([spans_of(), spans_of(), receiving(array)])


def barrier(plane: DataPlane) -> None:
    plane.barrier()


@pytest.mark.parametrize("work", [ones, broadcast_from_2, barrier])
def test_abort_ends_ranks_that_wait_in_different_parts(work: Callable[[DataPlane], None]) -> None:
    """Of hosts a, a, b the last does not come: rank 0 waits for it in the ring, and rank 1 for rank 0 in memory."""
    error = PeerLost(2, "b", "it went silent")
    with open_on("aab", PATIENCE_S) as planes:
        raised: dict[int, BaseException] = {}

        def wait(rank: int) -> None:
            try:
                work(planes[rank])
            except PeerLost as caught:
                raised[rank] = caught

        waiting = [threading.Thread(target=wait, args=(rank,)) for rank in (0, 1)]
        for thread in waiting:
            thread.start()
        waiting[0].join(0.2)
        assert all(thread.is_alive() for thread in waiting)
        for rank in (0, 1):
            planes[rank].abort(error)
        for thread in waiting:
            thread.join(PATIENCE_S)
        for rank in (0, 1):
            assert raised[rank] is error
            with pytest.raises(PeerLost):
                planes[rank].barrier()


def test_a_timeout_in_one_part_ends_all_and_calls_ranks_as_the_group_does() -> None:
    with open_on("abbb", 0.5) as planes:

        def attempt(rank: int) -> str:
            try:
                planes[rank].barrier()
            except HorovodInternalError as error:
                return str(error)
            return ""

        # Rank 0 of host a does not come. On host b rank 1 waits for it in the ring, 2 and 3 wait for rank 1.
        errors = ["", *thread_ranks(3, lambda index: attempt(index + 1))]
        assert "barrier on rank 1 of the ring, next to rank 0, failed: no bytes moved" in errors[1]
        assert "barrier on rank 2 failed: no bytes moved" in errors[2]
        assert "barrier on rank 3 failed: no bytes moved" in errors[3]
        for rank in (1, 2, 3):
            with pytest.raises(HorovodInternalError) as caught:
                ones(planes[rank])
            assert str(caught.value) == errors[rank]


@pytest.mark.parametrize(("hosts", "shares"), [("aabb", [50_000] * 4), ("abab", [50_000] * 4), ("abbb", [100_000] * 2)])
def test_each_byte_crosses_in_one_lane_and_lanes_share_them_evenly(hosts: str, shares: list[int]) -> None:
    reduced: list[int] = []
    allreduce = RingPlane.allreduce

    def counted(plane: RingPlane, spans: Spans, *arguments: Any) -> None:
        reduced.append(int(spans[:, 2].sum()) // 4)
        allreduce(plane, spans, *arguments)

    with open_on(hosts, 5.0) as planes, patch.object(RingPlane, "allreduce", counted):
        thread_ranks(4, lambda rank: ones(planes[rank]))
    assert sum(reduced) == sum(shares)
    assert all(abs(number - share) < 64 for number, share in zip(sorted(reduced), shares, strict=True))


@pytest.mark.parametrize("hosts", ["aabb", "abbb"])
def test_an_average_of_halves_overflows_no_earlier_than_its_result(hosts: str) -> None:
    def work(plane: DataPlane) -> np.float16:
        array = np.full(1000, 60_000, np.float16)
        plane.allreduce(spans_of((array, array)), DType.FLOAT16, Sum, 1.0, 1 / plane.size)
        assert (array == array[0]).all()
        return array[0]

    with open_on(hosts, 5.0) as planes:
        assert thread_ranks(4, lambda rank: work(planes[rank])) == [60_000] * 4


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.UINT8], ids=str)
@pytest.mark.parametrize("hosts", ["abab", "abbb", "aabbb"])
def test_batches_of_several_pieces(hosts: str, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hierarchical, "_PIECE_BYTES", 30_000)
    storage = {DType.FLOAT32: np.float32, DType.FLOAT16: np.float16, DType.UINT8: np.uint8}[dtype]

    def work(plane: DataPlane) -> None:
        arrays = [np.arange(count).astype(np.uint8).astype(storage) for count in (1, 40_001, 0, 7, 90_000)]
        expected = [array * storage(plane.size) for array in arrays]
        plane.allreduce(spans_of(*zip(arrays, arrays, strict=True)), dtype, Sum, 1.0, 1.0)
        for array, sums in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(array, sums)
        gathered = np.zeros((plane.size, 99_999), np.uint8)
        gathered[plane.rank] = plane.rank + 1
        streams = [receiving(row) for row in gathered]
        streams[plane.rank] = spans_of((gathered[plane.rank], gathered[plane.rank]))
        plane.allgather(streams)
        assert (gathered == np.arange(1, plane.size + 1)[:, None]).all()
        scattered = np.ones((plane.size, 50_001), storage)
        parts = [spans_of((row, row)) for row in scattered]
        plane.reducescatter(parts, dtype, Sum, 1.0, 1.0)
        assert (scattered[plane.rank] == plane.size).all()
        assert scattered.sum(dtype=np.int64) == (2 * plane.size - 1) * 50_001

    with open_on(hosts, 5.0) as planes:
        thread_ranks(len(hosts), lambda rank: work(planes[rank]))
