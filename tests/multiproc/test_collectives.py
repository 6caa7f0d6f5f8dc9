"""The numpy API in real processes, over both planes: every collective, synchronous, asynchronous and in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import process_ranks

PLANES = ["shm", "ring"]
DTYPES = ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


def _tensor(dtype: str, rank: int, shape: tuple[int, ...] = (17,)) -> Any:
    count = int(np.prod(shape))
    return (np.arange(count) % 7 + rank + 1).astype(dtype).reshape(shape)


def _every_collective() -> str:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        tensors = [_tensor(dtype, peer) for peer in range(size)]
        stacked = np.stack(tensors)
        expected = {hvd.Sum: stacked.sum(0), hvd.Min: stacked.min(0), hvd.Max: stacked.max(0)}
        for op, wanted in expected.items():
            np.testing.assert_array_equal(hvd.allreduce(tensors[rank], op=op), wanted.astype(dtype))
        average = hvd.allreduce(tensors[rank], name=f"{dtype} average")
        exact = stacked.astype("f8").sum(0) / size
        wanted = np.trunc(exact) if np.dtype(dtype).kind in "iu" else exact
        np.testing.assert_allclose(average, wanted.astype(dtype), rtol=1e-3)
        assert average.dtype == np.dtype(dtype)
        for root in range(size):
            np.testing.assert_array_equal(hvd.broadcast(tensors[rank], root), tensors[root])
        rows = [_tensor(dtype, peer, (peer * 2 % 3, 4)) for peer in range(size)]  # some ranks give no row
        np.testing.assert_array_equal(hvd.allgather(rows[rank]), np.concatenate(rows))
    hvd.shutdown()
    return "ok"


def _in_place_and_scaled() -> str:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    tensor = np.full(5, float(rank), np.float32)
    assert hvd.allreduce_(tensor, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5) is tensor
    np.testing.assert_allclose(tensor, sum(range(size)))
    tensor[:] = rank
    assert hvd.broadcast_(tensor, size - 1) is tensor
    np.testing.assert_array_equal(tensor, size - 1)
    source = np.full(3, rank, np.int64)
    np.testing.assert_array_equal(hvd.allreduce(source, op=hvd.Product), 0)
    np.testing.assert_array_equal(source, rank)  # out of place leaves the input alone
    flags = np.array([rank == 0, True, False])
    np.testing.assert_array_equal(hvd.allreduce(flags, op=hvd.Max), [True, True, False])
    np.testing.assert_array_equal(hvd.allreduce(flags, op=hvd.Min), [size == 1, True, False])
    hvd.shutdown()
    return "ok"


def _odd_shapes() -> str:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    scalar = hvd.allreduce(np.array(rank + 1.0), op=hvd.Sum)
    assert scalar.shape == ()
    assert scalar == size * (size + 1) / 2
    assert hvd.allreduce(np.empty((0, 3), np.float32)).shape == (0, 3)
    assert hvd.allgather(np.empty((0, 3), np.float32)).shape == (0, 3)
    assert hvd.broadcast(np.empty(0, np.int8), 0).shape == (0,)
    np.testing.assert_array_equal(hvd.allreduce(np.full(1, 1, np.uint8), op=hvd.Sum), [size])
    for count in (1, 2, 3, 1023, 65_537, 1_000_003):
        np.testing.assert_array_equal(hvd.allreduce(np.ones(count, np.float32), op=hvd.Sum), np.full(count, size))
    hvd.shutdown()
    return "ok"


def _many_in_different_orders() -> str:
    hvd.init()
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
    hvd.shutdown()
    return "ok"


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("work", [_every_collective, _in_place_and_scaled, _odd_shapes, _many_in_different_orders])
@pytest.mark.parametrize("size", [2, 3])
def test_over_each_plane(work: Any, size: int, plane: str) -> None:
    outcomes = process_ranks(size, work, environ={"HVDLITE_PLANE": plane})
    assert [outcome.result() for outcome in outcomes] == ["ok"] * size


@pytest.mark.parametrize("size", [1, 4, 5])
def test_at_other_rank_counts(size: int) -> None:
    outcomes = process_ranks(size, _every_collective)
    assert [outcome.result() for outcome in outcomes] == ["ok"] * size


def _who_am_i() -> tuple[Any, ...]:
    hvd.init()
    total = hvd.allreduce(np.ones(3), op=hvd.Sum)[0]
    who = (hvd.rank(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous())
    hvd.shutdown()
    return (*who, total)


def test_ranks_of_two_hosts_use_the_ring() -> None:
    hosts = {rank: {"HVDLITE_HOSTID": host} for rank, host in enumerate("aab")}
    outcomes = process_ranks(3, _who_am_i, environ={"HVDLITE_LOG_LEVEL": "info"}, environ_by_rank=hosts)
    assert [outcome.result() for outcome in outcomes] == [
        (0, 0, 2, 0, 2, False, 3.0),
        (1, 1, 2, 0, 1, False, 3.0),
        (2, 0, 1, 1, 2, False, 3.0),
    ]
    assert "data plane ring" in outcomes[0].output


def _one_gibibyte() -> int:
    hvd.init()
    tensor = np.full(1 << 30, hvd.rank() + 1, np.uint8)
    hvd.allreduce_(tensor, op=hvd.Sum)
    wrong = np.count_nonzero(tensor != 3)
    hvd.shutdown()
    return int(wrong)


def test_a_tensor_of_one_gibibyte() -> None:
    assert [outcome.result() for outcome in process_ranks(2, _one_gibibyte, deadline_s=60)] == [0, 0]
