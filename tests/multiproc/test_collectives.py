"""Cases too large for the grid: large tensors, many at once, more ranks, and two hosts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import process_ranks


def _large() -> None:
    """Lengths around and far from those of chunks."""
    rank, size = hvd.rank(), hvd.size()
    for count in (1023, 65_537, 1_000_003):
        np.testing.assert_array_equal(hvd.allreduce(np.full(count, rank), op=hvd.Sum), sum(range(size)))
        own = np.arange(count) + rank
        part = hvd.reducescatter(own, op=hvd.Max)
        whole = hvd.allgather(part)
        np.testing.assert_array_equal(whole, np.arange(count) + size - 1)
        splits = [count * peer // 10 for peer in range(size)]
        received, rows = hvd.alltoall(own[: sum(splits)], splits=splits)
        assert rows.tolist() == [splits[rank]] * size
        begin = sum(splits[:rank])
        wanted = [np.arange(begin, begin + splits[rank]) + peer for peer in range(size)]
        np.testing.assert_array_equal(received, np.concatenate(wanted))


def _many_in_different_orders() -> None:
    rank, size = hvd.rank(), hvd.size()
    tensors = {f"tensor {index}": np.full(index % 50, index, np.int32) for index in range(400)}
    random = np.random.default_rng(rank)
    for _ in range(3):
        handles = {
            name: hvd.allreduce_async(tensors[name], name=name, op=hvd.Sum)
            for name in random.permutation(list(tensors))
        }
        for name in random.permutation(list(tensors)):
            np.testing.assert_array_equal(hvd.synchronize(handles[name]), tensors[name] * size)


def _large_and_many() -> str:
    hvd.init()
    _large()
    _many_in_different_orders()
    hvd.shutdown()
    return "ok"


@pytest.mark.parametrize(("size", "plane"), [(2, "shm"), (2, "ring"), (3, "shm"), (3, "ring"), (5, "auto")])
def test_over_each_plane(size: int, plane: str) -> None:
    outcomes = process_ranks(size, _large_and_many, environ={"HVDLITE_PLANE": plane})
    assert [outcome.result() for outcome in outcomes] == ["ok"] * size


def _who_am_i() -> tuple[Any, ...]:
    hvd.init()
    total = hvd.allreduce(np.ones(3), op=hvd.Sum)[0]
    who = (hvd.rank(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous())
    hvd.shutdown()
    return (*who, total)


def test_ranks_of_two_hosts_use_the_hierarchical_plane() -> None:
    hosts = {rank: {"HVDLITE_HOSTID": host} for rank, host in enumerate("aab")}
    outcomes = process_ranks(3, _who_am_i, environ={"HVDLITE_LOG_LEVEL": "info"}, environ_by_rank=hosts)
    assert [outcome.result() for outcome in outcomes] == [
        (0, 0, 2, 0, 2, False, 3.0),
        (1, 1, 2, 0, 1, False, 3.0),
        (2, 0, 1, 1, 2, False, 3.0),
    ]
    assert "data plane hierarchical" in outcomes[0].output


def _one_gibibyte() -> int:
    hvd.init()
    tensor = np.full(1 << 30, hvd.rank() + 1, np.uint8)
    hvd.allreduce_(tensor, op=hvd.Sum)
    wrong = np.count_nonzero(tensor != 3)
    hvd.shutdown()
    return int(wrong)


@pytest.mark.faults  # ordinary arrays of 256 MiB and shared ones of more than 2 GiB are in all runs
def test_a_tensor_of_one_gibibyte() -> None:
    assert [outcome.result() for outcome in process_ranks(2, _one_gibibyte)] == [0, 0]
