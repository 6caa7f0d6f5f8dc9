"""The fake of NCCL does what NCCL does, and notices what NCCL would not."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from hvdlite.errors import HorovodInternalError
from hvdlite.planes.nccl import library as nccl
from hvdlite.tensors.dtypes import DType, Max, Min, Product, Sum
from tests.contract import oracle
from tests.gpu.fake import Fakes
from tests.gpu.ranks import RawRank, raw_ranks
from tests.harness.patience import PATIENCE_S

COUNT = 20_011  # longer than the fake moves at once


def inputs(dtype: DType, size: int) -> list[oracle.Array]:
    rng = np.random.default_rng(int(dtype))
    return [oracle.random(rng, dtype, COUNT) for _ in range(size)]


def test_reductions(fakes: Fakes) -> None:
    """Every type but float8, which is PyTorch's, and every operation; averages and pre-multiplied sums of floats."""
    size = 3
    types = {dtype: number for dtype, number in nccl.TYPES.items() if isinstance(dtype, DType)}
    values = {dtype: inputs(dtype, size) for dtype in types}

    def work(rank: RawRank) -> None:
        for dtype, number in types.items():
            own = fakes.array(values[dtype][rank.rank], rank.rank % 2)
            for op in (Sum, Product, Min, Max):
                result = fakes.empty(COUNT, own.dtype, rank.rank % 2)
                rank.call("ncclAllReduce", own.address, result.address, COUNT, number, nccl.OPERATIONS[op])
                rank.stream.synchronize()
                oracle.assert_one_of(
                    result.on_device(), [oracle.allreduce(values[dtype], dtype, op)], dtype, f"{dtype}"
                )
        floats = values[DType.FLOAT32]
        own = fakes.array(floats[rank.rank], rank.rank % 2)
        result = fakes.empty(COUNT, np.float32, rank.rank % 2)
        operation, scalar = ctypes.c_int(), ctypes.c_float(0.5)
        rank.functions.ncclRedOpCreatePreMulSum(ctypes.byref(operation), ctypes.byref(scalar), 7, 1, rank.comm)
        rank.call("ncclAllReduce", own.address, result.address, COUNT, 7, operation.value)
        rank.functions.ncclRedOpDestroy(operation.value, rank.comm)
        rank.stream.synchronize()
        assert result.on_device().tobytes() == oracle.allreduce(floats, DType.FLOAT32, Sum, 0.5).tobytes()
        rank.call("ncclAllReduce", own.address, own.address, COUNT, 7, nccl.AVERAGE)
        rank.stream.synchronize()
        np.testing.assert_allclose(own.on_device(), sum(floats) / size, rtol=1e-6, atol=1e-6)

    raw_ranks(size, work)


def test_other_collectives_one_by_one_and_grouped(fakes: Fakes) -> None:
    size = 3

    def work(rank: RawRank) -> None:
        def made(*values: int) -> np.ndarray:
            return np.repeat(np.array(values, np.int32), COUNT)

        own = fakes.array(made(rank.rank), rank.rank % 2)
        parts = fakes.array(made(*(10 * rank.rank + peer for peer in range(size))), rank.rank % 2)
        everyone = fakes.empty(size * COUNT, np.int32, rank.rank % 2)
        once, summed, swapped, root = (fakes.array(made(-1), rank.rank % 2) for _ in range(4))
        calls: list[Callable[[], None]] = [
            partial(rank.call, "ncclAllGather", own.address, everyone.address, COUNT, 2),
            partial(rank.call, "ncclBroadcast", own.address, once.address, COUNT, 2, 1),
            partial(rank.call, "ncclReduceScatter", parts.address, summed.address, COUNT, 2, 0),
            partial(rank.call, "ncclReduce", own.address, root.address, COUNT, 2, 0, 2),
        ]
        for grouped in (False, True):
            for array in (everyone, once, summed, swapped, root):
                array.write(np.full(array.nbytes // 4, -1, np.int32))
            if grouped:
                rank.functions.ncclGroupStart()
            for call in calls:
                call()
            if not grouped:
                rank.functions.ncclGroupStart()
            rank.call("ncclSend", own.address, COUNT, 2, (rank.rank + 1) % size)
            rank.call("ncclRecv", swapped.address, COUNT, 2, (rank.rank - 1) % size)
            rank.functions.ncclGroupEnd()
            rank.stream.synchronize()
            assert (everyone.on_device() == made(0, 1, 2)).all()
            assert (once.on_device() == 1).all()
            assert (summed.on_device() == 30 + 3 * rank.rank).all()
            assert (root.on_device() == (3 if rank.rank == 2 else -1)).all()
            assert (swapped.on_device() == (rank.rank - 1) % size).all()

    raw_ranks(size, work)


def test_ranks_that_make_different_calls_are_told(fakes: Fakes) -> None:
    def work(rank: RawRank) -> tuple[int, str]:
        array = fakes.array(np.ones(10, np.int32), rank.rank)
        rank.call("ncclAllReduce", array.address, array.address, 10 - rank.rank, 2, 0)
        deadline = time.monotonic() + PATIENCE_S
        while rank.state() == nccl.SUCCESS and time.monotonic() < deadline:
            time.sleep(0.001)
        return rank.state(), str(nccl.failure(rank.state(), "x", rank.comm))

    for state, text in raw_ranks(2, work):
        assert state == 5
        assert "make different calls" in text


def test_memory_of_the_host_is_an_illegal_address(fakes: Fakes) -> None:
    def work(rank: RawRank) -> str:
        array = np.ones(10, np.int32)
        rank.call("ncclAllReduce", array.ctypes.data, array.ctypes.data, 10, 2, 0)
        deadline = time.monotonic() + PATIENCE_S
        while rank.state() == nccl.SUCCESS and time.monotonic() < deadline:
            time.sleep(0.001)
        return str(nccl.failure(rank.state(), "x", rank.comm))

    assert all("illegal memory access" in text for text in raw_ranks(2, work))


def test_a_type_that_nccl_lacks_is_refused(fakes: Fakes) -> None:
    def work(rank: RawRank) -> None:
        array = fakes.array(np.ones(10, np.int16))
        with pytest.raises(HorovodInternalError, match="invalid type 17"):
            rank.call("ncclAllReduce", array.address, array.address, 10, 17, 0)

    raw_ranks(1, work)
