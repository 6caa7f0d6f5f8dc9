"""Inputs besides plain arrays: other element types, strides, and numbers; for 1 to 3 ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import process_ranks

RECORD = [("a", "<f4"), ("b", ">i2"), ("c", "S3")]
MOVED = ["u2", "u4", "u8", "c8", "c16", "M8[ns]", "m8[s]", ">f4", ">c8", "S5", "U2", "V3", "g", RECORD]


def _bytes_of(rank: int, dtype: Any, *shape: int) -> Any:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.arange(rank, rank + size, dtype=np.uint8).view(dtype).reshape(shape)


def _joined(each: Any) -> Any:
    """Concatenates as numpy does, but keeps the byte order."""
    joined = np.frombuffer(b"".join(part.tobytes() for part in each), each[0].dtype)
    return joined.reshape(-1, *each[0].shape[1:])


def _same(left: Any, right: Any) -> bool:
    return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())


def _move(dtype: Any) -> None:
    rank, size = hvd.rank(), hvd.size()
    each = [_bytes_of(other, dtype, size, 2) for other in range(size)]
    own = each[rank].copy()
    assert _same(hvd.allgather(own), _joined(each))
    assert _same(hvd.grouped_allgather([own, np.ones(2)])[0], _joined(each))
    assert _same(hvd.broadcast(own, size - 1), each[-1])
    assert _same(hvd.alltoall(own), _joined([other[rank : rank + 1] for other in each]))
    assert _same(hvd.gather(own, 0), _joined(each) if rank == 0 else own[:0])
    assert _same(hvd.scatter(own, 0), each[0][rank : rank + 1])
    assert _same(hvd.broadcast(own[:, 1], 0), each[0][:, 1].copy())  # not contiguous
    assert _same(own, each[rank])
    hvd.broadcast_(own, 0, name=f"{dtype}")  # twice: the second one is known
    assert _same(hvd.broadcast_(own, 0, name=f"{dtype}"), each[0])
    if size > 1:
        handle = hvd.send_async(each[rank], (rank + 1) % size)
        assert _same(hvd.recv(own, (rank - 1) % size), each[rank - 1])
        hvd.synchronize(handle)
    with pytest.raises(ValueError, match="is not supported by allreduce"):
        hvd.allreduce(own.view(">u4") if own.dtype.kind == "c" and own.dtype.isnative else own)


def _scenario() -> str:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in MOVED:
        _move(dtype)

    # ranks whose elements are of one size, and differ
    if size > 1:
        for left, right in (("u4", ">f4"), ("c8", "u8"), ("M8[s]", "M8[ns]"), ("f4", ">f4"), ("i8", "c8")):
            with pytest.raises(hvd.Mismatch, match="disagree about the dtype") as caught:
                hvd.broadcast(np.zeros(2, left if rank == 0 else right), 0)
            shown = [str(np.dtype(each)) for each in (left, right)]
            assert all(name in str(caught.value) for name in shown), caught.value

    # complex numbers are added by parts, on every plane, fused or not
    for dtype in (np.complex64, np.complex128):
        each = [(np.arange(12.0).reshape(3, 4) + other * (1 + 2j)).astype(dtype) for other in range(size)]
        total = np.sum(each, axis=0)
        own = each[rank]
        assert _same(hvd.allreduce(own, op=hvd.Sum), total)
        np.testing.assert_allclose(hvd.allreduce(own), total / size, rtol=1e-6)
        assert hvd.allreduce(own).dtype == dtype
        assert _same(hvd.allreduce(own.T, op=hvd.Sum, prescale_factor=2.0), 2 * total.T.copy())
        assert _same(hvd.reducescatter(own, op=hvd.Sum), np.array_split(total, size)[rank])
        assert _same(hvd.reduce(own, 0, op=hvd.Sum), total if rank == 0 else own[:0])
        mixed = hvd.grouped_allreduce([own, own.real.copy(), own.copy()], op=hvd.Sum)
        assert _same(mixed[0], total)
        assert _same(mixed[1], total.real.copy())
        assert _same(hvd.allreduce_(own.copy(), op=hvd.Sum), total)

    # numbers
    total = size * (size - 1) // 2
    for number in (float(rank), rank, complex(rank), np.float32(rank), np.uint8(rank), np.complex64(rank)):
        for result in (
            hvd.allreduce(number, op=hvd.Sum),
            hvd.allreduce(number, op=hvd.Sum, name=f"number {type(number)}"),
            hvd.synchronize(hvd.allreduce_async(number, op=hvd.Sum)),
            hvd.grouped_allreduce([np.ones(2), number], op=hvd.Sum)[1],
            hvd.synchronize(hvd.grouped_allreduce_async([number], op=hvd.Sum))[0],
        ):
            assert (type(result), result) == (type(number), total)
        result = hvd.broadcast(number, size - 1)
        assert (type(result), result) == (type(number), size - 1)
        reduced = hvd.reduce(number, 0, op=hvd.Sum)
        assert reduced == total if rank == 0 else reduced.shape == (0,)
    assert hvd.allreduce(1.5) == 1.5
    assert hvd.broadcast(np.datetime64(rank, "s"), 0) == np.datetime64(0, "s")
    assert isinstance(hvd.allreduce(np.array(1.0)), np.ndarray)
    if size == 2:
        handle = hvd.send_async(2.5 + rank, 1 - rank)
        assert hvd.recv(0.0, 1 - rank) == 3.5 - rank
        hvd.synchronize(handle)
    hvd.shutdown()
    return "right"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_elements_strides_and_numbers(ranks: int) -> None:
    assert [outcome.result() for outcome in process_ranks(ranks, _scenario)] == ["right"] * ranks


def test_across_hosts() -> None:
    hosts = {rank: {"HVDLITE_HOSTID": "ab"[rank // 2]} for rank in range(4)}
    assert [outcome.result() for outcome in process_ranks(4, _scenario, environ_by_rank=hosts)] == ["right"] * 4
