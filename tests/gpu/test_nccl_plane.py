"""Every collective of the plane for GPUs, over the fakes, with ranks that are threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hvdlite.errors import HorovodInternalError
from hvdlite.planes.local import LocalPlane
from hvdlite.planes.nccl.plane import NcclPlane
from hvdlite.planes.nccl.reduction import lack_of_float8, reduction
from hvdlite.tensors.device import CPU
from hvdlite.tensors.dtypes import FLOAT8, Average, DType, Max, Min, Product, Sum
from tests.contract import oracle
from tests.gpu.fake import Fakes
from tests.gpu.planes import Planes, opened, receiving, sending, spans_of

FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)
COUNT = 1237


@pytest.fixture(params=[1, 2, 3])
def group(fakes: Fakes, request: pytest.FixtureRequest) -> Iterator[Planes]:
    with opened(fakes, request.param) as planes:
        yield planes


def _reduced(
    group: Planes, dtype: DType, op: int, prescale: float = 1.0, postscale: float = 1.0
) -> tuple[list[Any], list[Any]]:
    """The inputs, and the outputs of an all-reduce in two rows, one of them in place."""
    rng = np.random.default_rng(int(dtype))
    inputs = [oracle.random(rng, dtype, COUNT) for _ in range(group.size)]

    def work(plane: NcclPlane) -> Any:
        first, last = (group.array(plane, part) for part in np.split(inputs[plane.rank], [COUNT // 3]))
        out = group.like(plane, first)
        launched = plane.allreduce(spans_of((first, out), (last, last)), dtype, op, prescale, postscale)
        assert launched is not None
        launched.wait()
        assert first.on_device().tobytes() == inputs[plane.rank][: COUNT // 3].tobytes()
        return np.concatenate([out.on_device(), last.on_device()])

    return inputs, group.run(work)


def test_every_type_and_operation(group: Planes) -> None:
    for dtype in sorted(set(DType) - {DType.INT16}):
        for op in (Sum, Min, Max, Product):
            inputs, outputs = _reduced(group, dtype, op)
            for output in outputs:
                oracle.assert_one_of(output, [oracle.allreduce(inputs, dtype, op)], dtype, f"{dtype} {op}")


def test_averages_and_scaled_sums_of_floats(group: Planes) -> None:
    for dtype in FLOATS:
        for prescale, postscale in ((1.0, 1 / group.size), (0.5, 1.0), (3.7, -0.3)):
            inputs, outputs = _reduced(group, dtype, Sum, prescale, postscale)
            wide = [oracle.widen(each, dtype).astype(np.float64) for each in inputs]
            exact = prescale * postscale * sum(wide)
            # The factor, the products and the result are each rounded to the type.
            magnitude = abs(prescale * postscale) * sum(np.abs(wide))
            digits = {DType.FLOAT16: 9, DType.BFLOAT16: 6, DType.FLOAT32: 21, DType.FLOAT64: 50}[dtype]
            bound = magnitude * 2.0**-digits + (2.0**-24 if dtype is DType.FLOAT16 else 0)
            for output in outputs:
                assert np.all(np.abs(oracle.widen(output, dtype) - exact) <= bound), (dtype, prescale, postscale)


def test_sums_of_integers_over_the_number_of_ranks_are_truncated(group: Planes) -> None:
    for dtype in (DType.INT32, DType.INT64, DType.INT8):

        def work(plane: NcclPlane, dtype: DType = dtype) -> Any:
            array = group.array(plane, np.arange(-20, 20, dtype=oracle.STORAGE[dtype]) + plane.rank)
            launched = plane.allreduce(spans_of((array, array)), dtype, Sum, 1.0, 1 / group.size)
            assert launched is not None
            launched.wait()
            return array.on_device()

        total = sum(np.arange(-20, 20) + rank for rank in range(group.size))
        for output in group.run(work):
            np.testing.assert_array_equal(output, np.trunc(total / group.size))


def test_what_nccl_cannot_compute_is_an_error_on_all_ranks() -> None:
    with pytest.raises(HorovodInternalError, match="NCCL does not reduce int16; pass tensor.int"):
        reduction(DType.INT16, Sum, 1.0, 1.0, 4)
    with pytest.raises(HorovodInternalError, match=r"wrap around before it is divided; pass tensor.cpu\(\)"):
        reduction(DType.INT64, Average, 1.0, 0.25, 4)


def test_which_float8_is_refused() -> None:
    def told(*how: float, version: int = 22400, capability: tuple[int, int] = (9, 0), op: int = Sum) -> str:
        return lack_of_float8(version, capability, op, *(how or (1.0, 1.0)), size=3)

    assert told() == told(op=Max) == told(1.0, 1 / 3) == told(capability=(12, 1)) == ""
    assert told(version=22304) == "NCCL 2.23.4 does not reduce float8, which 2.24.0 does; pass tensor.half()"
    assert "of compute capability 9.0, and this one has 8.9" in told(capability=(8, 9))
    assert "added by NCCL only" in LocalPlane().unsupported_reduction(
        CPU, FLOAT8[0], Sum, 1.0, 1.0
    )  # as any other plane
    for refused in (told(0.5, 1.0), told(1.0, 1 / 2), told(1.0, 1 / 3, op=Max)):
        assert refused.startswith("float8 has no scale factors")


def test_reduce_scatter_in_parts_of_unequal_length(group: Planes) -> None:
    lengths = [0, 300, 17][: group.size] if group.size > 1 else [5]

    def work(plane: NcclPlane) -> None:
        rows = [np.full(length, 10 * plane.rank + part, np.float32) for part, length in enumerate(lengths)]
        inputs = [group.array(plane, row) for row in rows]
        output = group.array(plane, np.zeros(lengths[plane.rank], np.float32))
        targets = [output if part == plane.rank else inputs[part] for part in range(group.size)]
        parts = [spans_of(pair) for pair in zip(inputs, targets, strict=True)]
        launched = plane.reducescatter(parts, DType.FLOAT32, Sum, 1.0, 1.0)
        assert launched is not None
        launched.wait()
        assert (output.on_device() == 10 * sum(range(group.size)) + group.size * plane.rank).all()
        for array, row in zip(inputs, rows, strict=True):
            assert (array.on_device() == row).all()

    group.run(work)


def test_all_gather_and_broadcast(group: Planes) -> None:
    def work(plane: NcclPlane) -> None:
        own = group.array(plane, np.full(100 * plane.rank + 1, plane.rank, np.int16))
        outputs = [group.array(plane, np.full(100 * rank + 1, -1, np.int16)) for rank in range(group.size)]
        streams = [receiving(output) for output in outputs]
        streams[plane.rank] = spans_of((own, outputs[plane.rank]))
        launched = plane.allgather(streams)
        assert launched is not None
        launched.wait()
        for rank, output in enumerate(outputs):
            assert (output.on_device() == rank).all()
        root = group.size - 1
        sent = group.array(plane, np.full(70_000, plane.rank, np.uint8))  # in place
        streams = [receiving() for _ in range(group.size)]
        streams[root] = spans_of((sent, sent)) if plane.rank == root else receiving(sent)
        launched = plane.allgather(streams)
        assert launched is not None
        launched.wait()
        assert (sent.on_device() == root).all()

    group.run(work)


def test_even_parts_apart_from_each_other_and_together(group: Planes) -> None:
    """Rows of two tensors, in pieces of their own or in one; then NCCL has a call of its own, for which pieces pack."""
    size, lengths = group.size, (100, 33)

    def work(plane: NcclPlane) -> None:
        me, item = plane.rank, 4
        for is_apart in (True, False):
            wholes = [group.array(plane, np.repeat(np.arange(size, dtype=np.int32), length)) for length in lengths]
            pieces = [[group.array(plane, np.full(n, rank, np.int32)) for n in lengths] for rank in range(size)]
            outputs = [group.array(plane, np.full(n, -1, np.int32)) for n in lengths]

            def address(
                rank: int, row: int, is_apart: bool = is_apart, wholes: Any = wholes, pieces: Any = pieces
            ) -> int:
                return int(pieces[rank][row].address if is_apart else wholes[row].address + rank * lengths[row] * item)

            parts = [
                np.array(
                    [(address(rank, row), outputs[row].address, n * item) for row, n in enumerate(lengths)], np.uint64
                )
                for rank in range(size)
            ]
            launched = plane.reducescatter(parts, DType.INT32, Sum, 1.0, 1.0)
            assert launched is not None
            launched.wait()
            for output in outputs:
                assert (output.on_device() == size * me).all()
            own = [group.array(plane, np.full(n, 50 + me, np.int32)) for n in lengths]
            streams = [
                np.array(
                    [
                        (own[row].address if rank == me else 0, address(rank, row), n * item)
                        for row, n in enumerate(lengths)
                    ],
                    np.uint64,
                )
                for rank in range(size)
            ]
            launched = plane.allgather(streams)
            assert launched is not None
            launched.wait()
            for row, n in enumerate(lengths):
                found = [pieces[rank][row].on_device() for rank in range(size)] if is_apart else wholes[row].on_device()
                assert np.ravel(found).tolist() == np.repeat(50 + np.arange(size), n).tolist()

    group.run(work)


def test_all_to_all_whose_rows_are_divided_differently(group: Planes) -> None:
    """Rank s sends ``s + 2 * d`` int64 to rank d, in rows of one; they are received in one row, or in two."""

    def count(source: int, target: int) -> int:
        return source + 2 * target if group.size > 1 else 3

    matrix = np.array([[8 * count(s, d) for d in range(group.size)] for s in range(group.size)], np.uint64)

    def work(plane: NcclPlane) -> None:
        me = plane.rank
        sent = [[group.array(plane, [100 * me + 10 * d + i]) for i in range(count(me, d))] for d in range(group.size)]
        received = []
        for source in range(group.size):
            rows = count(source, me)
            lengths = [rows // 2, rows - rows // 2] if source % 2 else [rows]
            received.append([group.array(plane, np.full(length, -1)) for length in lengths])
        launched = plane.alltoall([sending(*each) for each in sent], [receiving(*each) for each in received], matrix)
        assert launched is not None
        launched.wait()
        for source, arrays in enumerate(received):
            values = np.concatenate([array.on_device() for array in arrays]).tolist()
            assert values == [100 * source + 10 * me + i for i in range(count(source, me))]

    group.run(work)


def test_a_rank_without_bytes_takes_part_in_making_the_communicator(fakes: Fakes) -> None:
    """Only rank 0 sends to rank 1, in the first collective of three ranks."""
    matrix = np.zeros((3, 3), np.uint64)
    matrix[0, 1] = 8

    with opened(fakes, 3) as group:

        def work(plane: NcclPlane) -> None:
            array = group.array(plane, [plane.rank + 5])
            sends = [sending(array) if (plane.rank, peer) == (0, 1) else sending() for peer in range(3)]
            receives = [receiving(array) if (peer, plane.rank) == (0, 1) else receiving() for peer in range(3)]
            launched = plane.alltoall(sends, receives, matrix)
            assert launched is not None
            launched.wait()
            assert array.on_device().tolist() == [5 if plane.rank == 1 else plane.rank + 5]

        group.run(work)


def test_nothing_to_move_is_nothing_to_do(group: Planes) -> None:
    def work(plane: NcclPlane) -> None:
        none = [spans_of() for _ in range(group.size)]
        assert plane.allreduce(spans_of(), DType.INT16, Max, 1.0, 2.0) is None
        assert plane.reducescatter(none, DType.INT16, Max, 1.0, 2.0) is None
        assert plane.allgather(none) is None
        assert plane.alltoall(none, none, np.zeros((group.size, group.size), np.uint64)) is None

    group.run(work)
    assert group.fakes.held()["communicators"] == 0


def test_zeros_and_barriers(group: Planes) -> None:
    before = group.fakes.held()["allocations"]

    def work(plane: NcclPlane) -> None:
        address, memory = plane.zeros(64)
        plane.barrier().wait()
        output = group.array(plane, np.ones(16, np.float32))
        spans = np.array([(address, output.address, 64)], np.uint64)
        launched = plane.allreduce(spans, DType.FLOAT32, Sum, 1.0, 1.0)
        assert launched is not None
        launched.wait()
        assert (output.on_device() == 0).all()
        del memory
        for dtype, kind in ((DType.FLOAT64, np.float64), (DType.FLOAT32, np.float32), (DType.FLOAT16, np.float16)):
            address, memory = plane.zeros(64, dtype)
            plane.barrier().wait()
            sent = group.array(plane, np.full(64 // dtype.itemsize, -0.0, kind))
            spans = np.array([(address, sent.address, 64)], np.uint64)
            launched = plane.allreduce(spans, dtype, Sum, 1.0, 1.0)
            assert launched is not None
            launched.wait()
            assert np.signbit(sent.on_device()).all()
            del memory
        plane.barrier().wait()

    group.run(work)
    assert group.fakes.held()["allocations"] == before
