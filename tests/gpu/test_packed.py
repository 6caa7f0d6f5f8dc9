"""All-reduces in one piece, and factors that NCCL lacks: the same bits as by a call for each tensor, or on a CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from hvdlite.cuda import driver
from hvdlite.errors import HorovodInternalError
from hvdlite.planes.nccl import mover, packing, scratch
from hvdlite.planes.nccl import plane as nccl_plane
from hvdlite.planes.nccl.communicator import Communicator
from hvdlite.planes.nccl.kernels import text
from hvdlite.planes.nccl.launched import Launched
from hvdlite.planes.nccl.packing import is_worth_packing
from hvdlite.planes.nccl.plane import NcclPlane
from hvdlite.tensors.buffer import Spans, in_place
from hvdlite.tensors.dtypes import DType, Max, Min, Product, Sum
from tests.contract import oracle
from tests.gpu.fake import Fakes, GpuArray
from tests.gpu.planes import Planes, opened, spans_of
from tests.harness.patience import until

TYPES = sorted(set(DType) - {DType.INT16})
LENGTHS = (1, 0, 7, 40, 600)
FACTORS = ((1.0, 1.0), (0.5, 1.0), (1 / 3, -2.5), (3.0, 1 / 3))
SIZES = (1, 2, 3)


@pytest.fixture(params=SIZES)
def group(fakes: Fakes, request: pytest.FixtureRequest) -> Iterator[Planes]:
    with opened(fakes, request.param) as planes:
        yield planes


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of NCCL's functions that were called from then on, by all ranks."""
    called: list[str] = []
    call = Communicator.call

    def recording(communicator: Communicator, name: str, *arguments: Any) -> None:
        called.append(name)
        call(communicator, name, *arguments)

    monkeypatch.setattr(Communicator, "call", recording)
    return called


def _choose(monkeypatch: pytest.MonkeyPatch, packs: bool) -> None:
    monkeypatch.setattr(packing, "TENSOR_US", 1e9 if packs else 0.0)


def _done(launched: Launched | None) -> None:
    assert launched is not None
    launched.wait()


def _values(dtype: DType, op: int, rank: int) -> list[Any]:
    """Any integers, and floats that no operation rounds."""
    rng = np.random.default_rng([int(dtype), op, rank])
    if not dtype.is_floating:
        return [oracle.random(rng, dtype, length) for length in LENGTHS]
    small = [1, 2, 4] if op == Product else np.arange(-300, 301)
    return [oracle.narrow(rng.choice(small, length).astype(_wide(dtype)), dtype) for length in LENGTHS]


def _wide(dtype: DType) -> type[np.generic]:
    return np.float64 if dtype is DType.FLOAT64 else np.float32


def _results(group: Planes, dtype: DType, op: int, factors: tuple[float, float]) -> list[list[Any]]:
    """The outputs of all ranks. Arrays before the last are in place, and all but those begin at odd elements."""
    item = dtype.itemsize

    def work(plane: NcclPlane) -> list[Any]:
        values = _values(dtype, op, plane.rank)
        *inside, last = (group.array(plane, np.concatenate([each[:1], each, each[:1]])) for each in values)
        output = group.array(plane, np.zeros(LENGTHS[-1], values[-1].dtype))
        rows = [(each.address + item,) * 2 + (each.nbytes - 2 * item,) for each in inside if each.nbytes > 2 * item]
        rows.append((last.address + item, output.address, output.nbytes))
        _done(plane.allreduce(np.array(rows, np.uint64), dtype, op, *factors))
        found = [each.on_device() for each in inside]
        for each, before in zip(found, values, strict=False):
            assert each[:1].tobytes() + each[-1:].tobytes() == 2 * before[:1].tobytes()  # what is around them stays
        return [*(each[1:-1] for each in found), output.on_device()]

    return group.run(work)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_both_ways_give_the_same_bits(group: Planes, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(Sum, factors) for factors in (*FACTORS, (1.0, 1 / group.size))]
    cases += product((Min, Max, Product), FACTORS[::2])
    for op, factors in cases:
        outcomes = []
        for packs in (True, False):
            _choose(monkeypatch, packs)
            outcomes.append(_results(group, dtype, op, factors))
        inputs = [_values(dtype, op, rank) for rank in range(group.size)]
        for row in range(len(LENGTHS)):
            found = {each[row].tobytes() for outcome in outcomes for each in outcome}
            assert len(found) == 1, (dtype, op, factors, row)
            _assert_as_on_a_cpu([each[row] for each in inputs], outcomes[0][0][row], dtype, op, factors)


def _assert_as_on_a_cpu(inputs: list[Any], found: Any, dtype: DType, op: int, factors: tuple[float, float]) -> None:
    """Bit by bit, unless a float is rounded more often: to its type before it is added, and with other factors."""
    expected = oracle.allreduce(inputs, dtype, op, *factors)
    if dtype is DType.INT64 and op == Sum and factors == (1.0, 1 / len(inputs)):  # exact, and not in double
        total = oracle.allreduce(inputs, dtype, op)
        expected = np.sign(total) * (abs(total) // len(inputs))
    is_exact = not dtype.is_floating or factors in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.5))
    if is_exact:
        oracle.assert_one_of(found, [expected], dtype, f"{dtype} {op} {factors}")
    else:
        digits = {DType.FLOAT16: 8, DType.BFLOAT16: 5, DType.FLOAT32: 21, DType.FLOAT64: 50}[dtype]
        wide = [oracle.widen(each, dtype).astype(np.float64) for each in (found, expected)]
        np.testing.assert_allclose(*wide, rtol=2.0**-digits, atol=2.0**-digits * 100)


def _scattered(group: Planes, dtype: DType, op: int, factors: tuple[float, float], lengths: Sequence[int]) -> None:
    """Reduce-scatters two rows of ``lengths`` for each rank: results as on a CPU, and inputs as they were."""
    inputs = [
        [
            [oracle.random(np.random.default_rng([rank, part, row]), dtype, length) for row in range(2)]
            for part, length in enumerate(lengths)
        ]
        for rank in range(group.size)
    ]

    def work(plane: NcclPlane) -> list[Any]:
        arrays = [[group.array(plane, row) for row in rows] for rows in inputs[plane.rank]]
        outputs = [group.like(plane, each) for each in arrays[plane.rank]]
        parts = [
            spans_of(*zip(rows, outputs if part == plane.rank else rows, strict=True))
            for part, rows in enumerate(arrays)
        ]
        for part in range(group.size):
            if part != plane.rank:
                parts[part][:, 1] = 0
        _done(plane.reducescatter(parts, dtype, op, *factors))
        for rows, before in zip(arrays, inputs[plane.rank], strict=True):
            assert [row.on_device().tobytes() for row in rows] == [each.tobytes() for each in before]
        return [each.on_device() for each in outputs]

    for rank, rows in enumerate(group.run(work)):
        for row, found in enumerate(rows):
            given = [inputs[each][rank][row] for each in range(group.size)]
            oracle.assert_one_of(found, [oracle.allreduce(given, dtype, op, *factors)], dtype, f"{dtype} {op}")


@pytest.mark.parametrize("lengths", [[100, 100, 100], [0, 33, 5]], ids=["even", "uneven"])
def test_reduce_scatter_with_factors_that_nccl_lacks(group: Planes, lengths: list[int]) -> None:
    lengths = lengths[: group.size] if group.size > 1 else [33]
    for dtype in (DType.INT8, DType.INT64):
        for op, factors in product((Sum, Max), ((1.0, 0.3), (-1.5, 2.0))):
            _scattered(group, dtype, op, factors, lengths)
    for factors in ((2.0, 1.0), (1.0, -0.3)):
        _scattered(group, DType.FLOAT64, Min, factors, lengths)


def _lengths(*lengths: int) -> Spans:
    return np.array([(1, 1, length) for length in lengths], np.uint64).reshape(-1, 3)


def test_which_are_packed() -> None:
    def told(*lengths: int) -> bool:
        return is_worth_packing([_lengths(*lengths)])

    few = int(packing.PACK_US / packing.TENSOR_US) + 1
    assert [told(*[4] * count) for count in (0, 1, few - 1, few + 1, 1000)] == [False, False, False, True, True]
    assert not told(*[4] * (few - 1), *[0] * few)
    most = int((100 * packing.TENSOR_US - packing.PACK_US) * packing.PACKED_BYTES_PER_US)
    for nbytes, is_worth in ((most - 1000, True), (most + 1000, False)):
        assert told(nbytes - 99 * 4, *[4] * 99) is is_worth
        assert told(*[nbytes // 100] * 100) is is_worth
    assert [told(*[length] * 1024) for length in (scratch.KEPT_BYTES // 1024 + more for more in (0, 1))] == [
        True,
        False,
    ]


def test_which_parts_are_packed() -> None:
    """Equal ones, of which each is as long as an all-reduce whose bytes are those of all parts."""
    few = int(packing.PACK_US / packing.TENSOR_US) + 2
    for lists, is_worth in (
        ([[4] * few] * 3, True),
        ([[4] * (few - 3)] * 3, False),
        ([[4] * few, [4] * (few - 1) + [8]], False),
        ([[4] * few, []], False),
        ([[scratch.KEPT_BYTES // 2048] * 1024] * 2, True),
        ([[scratch.KEPT_BYTES // 2048] * 1024] * 3, False),
    ):
        assert is_worth_packing([_lengths(*each) for each in lists]) is is_worth


def _both_ways_of_parts(plane: NcclPlane, group: Planes, dtype: DType, factors: tuple[float, float]) -> list[bytes]:
    """The outputs of a reduce-scatter and then of an all-gather of its outputs, each of 30 tensors."""
    item, rng = dtype.itemsize, np.random.default_rng(plane.rank)
    lengths = [number % 7 + 1 for number in range(30)]
    inputs = [group.array(plane, oracle.random(rng, dtype, 1 + group.size * length)) for length in lengths]
    own = [group.array(plane, np.zeros(length, oracle.STORAGE[dtype])) for length in lengths]
    parts = [
        np.array(
            [
                (array.address + (1 + rank * length) * item, target.address * (rank == plane.rank), length * item)
                for array, target, length in zip(inputs, own, lengths, strict=True)
            ],
            np.uint64,
        )
        for rank in range(group.size)
    ]
    before = [array.on_device().tobytes() for array in inputs]
    _done(plane.reducescatter(parts, dtype, Sum, *factors))
    assert [array.on_device().tobytes() for array in inputs] == before
    outputs = [group.array(plane, np.zeros(1 + group.size * length, oracle.STORAGE[dtype])) for length in lengths]
    streams = [
        np.array(
            [
                (source.address * (rank == plane.rank), array.address + (1 + rank * length) * item, length * item)
                for source, array, length in zip(own, outputs, lengths, strict=True)
            ],
            np.uint64,
        )
        for rank in range(group.size)
    ]
    _done(plane.allgather(streams))
    return [array.on_device().tobytes() for array in (*own, *outputs)]


def test_parts_are_the_same_bits_both_ways(group: Planes, monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    for dtype in (DType.FLOAT16, DType.FLOAT64, DType.INT8, DType.INT64):
        for factors in ((1.0, 1.0), (1.0, 1 / group.size), (0.5, 0.7)):
            found = []
            for packs in (True, False):
                _choose(monkeypatch, packs)
                calls.clear()
                found.append(group.run(partial(_both_ways_of_parts, group=group, dtype=dtype, factors=factors)))
                each = group.size * (1 if packs else 30)
                assert Counter(calls) == {"ncclReduceScatter": each, "ncclAllGather": each}
            assert found[0] == found[1], (dtype, factors)
            gathered = [each[30:] for each in found[0]]
            assert all(each == gathered[0] for each in gathered)


def test_many_tensors_are_one_call(fakes: Fakes, calls: list[str]) -> None:
    with opened(fakes, 2) as group:

        def work(plane: NcclPlane) -> None:
            arrays = [group.array(plane, np.full(number, number, np.float32)) for number in range(1, 201)]
            _done(plane.allreduce(spans_of(*zip(arrays, arrays, strict=True)), DType.FLOAT32, Sum, 1.0, 0.5))
            for number, array in enumerate(arrays, 1):
                assert (array.on_device() == number).all()

        group.run(work)
    assert calls == ["ncclAllReduce"] * 2


def test_packs_follow_each_other_in_the_stream_and_use_the_same_memory(fakes: Fakes) -> None:
    """Batches of different sizes that are all launched before the first begins."""
    with opened(fakes, 2) as group:

        def work(plane: NcclPlane) -> None:
            _done(plane.barrier())
            assert plane._gpu is not None
            fakes.cuda.fake_hold(plane._gpu.stream.handle)
            arrays: list[GpuArray] = []
            launched = []
            for batch in range(6):
                made = [group.array(plane, np.full(100 * (batch % 3 + 1), batch, np.int32)) for _ in range(20)]
                spans = spans_of(*zip(made, made, strict=True))
                launched.append(plane.allreduce(spans, DType.INT32, Sum, 2.0, 1.0))
                launched.append(plane.allreduce(in_place(spans), DType.INT32, Sum, 1.0, 1.0))
                arrays += made
            fakes.cuda.fake_release(plane._gpu.stream.handle)
            for each in launched:
                _done(each)
            assert [array.on_device()[-1] for array in arrays] == [8 * (each // 20) for each in range(120)]

        group.run(work)


def test_the_memory_of_packs_is_kept_and_given_back(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_LEAST_BYTES", 1 << 12)
    before = fakes.held()["allocations"]
    agreed = []
    with opened(fakes, 1) as group:
        plane = group.planes[0]
        monkeypatch.setattr(nccl_plane, "do_all", lambda is_so, over: agreed.append(is_so) or is_so)
        kept = []
        for length in (10, 5, 60, 1000, 700, 10):  # 20 of them are 960 bytes, 4,800 and 80,000
            arrays = [group.array(plane, np.zeros(length, np.float32)) for _ in range(20)]
            held = fakes.held()["allocations"]
            _done(plane.allreduce(spans_of(*zip(arrays, arrays, strict=True)), DType.FLOAT32, Sum, 1.0, 1.0))
            kept.append(fakes.held()["allocations"] - held)
        del arrays
        assert kept == [1, 0, 0, 0, 0, 0]
        assert agreed == [True] * 3
    until(lambda: fakes.held()["allocations"] == before)


def test_without_memory_to_pack_on_one_rank_all_ranks_reduce_one_by_one(
    fakes: Fakes, calls: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with opened(fakes, 3) as group:
        at_first = Barrier(3)

        def work(plane: NcclPlane) -> list[bytes]:
            _done(plane.barrier())
            if at_first.wait() == 0:
                calls.clear()
                fakes.fail("cuMemAllocAsync", driver.OUT_OF_MEMORY)  # once, so on one rank
            at_first.wait()
            outputs = []
            for dtype, factors in ((DType.FLOAT32, (1.0, 1.0)), (DType.INT32, (3.0, 2.0))):
                values = np.arange(40).astype(str(dtype)) + np.array(plane.rank, str(dtype))
                inputs = [group.array(plane, values) for _ in range(20)]
                targets = [group.like(plane, each) for each in inputs]
                _done(plane.allreduce(spans_of(*zip(inputs, targets, strict=True)), dtype, Sum, *factors))
                assert all(each.on_device().tobytes() == values.tobytes() for each in inputs)
                outputs += [each.on_device().tobytes() for each in targets]
            return outputs + _both_ways_of_parts(plane, group, DType.FLOAT32, (1.0, 1.0))

        found = group.run(work)
        assert found[0][:40] == found[1][:40] == found[2][:40]
        assert np.frombuffer(found[0][0], np.float32).tolist() == [3.0 * value + 3 for value in range(40)]
        assert np.frombuffer(found[0][20], np.int32).tolist() == [6 * (3 * value + 3) for value in range(40)]
        one_by_one = {"ncclAllReduce": 3 * 40, "ncclReduce": 9 * 30, "ncclBroadcast": 9 * 30}
        assert Counter(calls) == one_by_one
        assert [plane.error for plane in group.planes] == [None] * 3
    told = [record.getMessage() for record in caplog.records if "one by one" in record.getMessage()]
    assert len(told) == 1
    assert "cuMemAllocAsync failed" in told[0]


def test_a_launch_that_fails_and_a_kernel_that_breaks_end_the_plane(fakes: Fakes) -> None:
    for breaks in (False, True):
        with opened(fakes, 1) as group:
            plane = group.planes[0]
            arrays = [group.array(plane, np.zeros(10, np.float32)) for _ in range(20)]
            spans = spans_of(*zip(arrays, arrays, strict=True))
            if breaks:
                spans[3, 1] = 16  # no allocation
                told = "cuEventSynchronize failed: CUDA_ERROR_ILLEGAL_ADDRESS"
            else:
                fakes.fail("cuLaunchKernel", 701)
                told = r"cuLaunchKernel failed.*\(701\)"
            with pytest.raises(HorovodInternalError, match=told) as raised:
                _done(plane.allreduce(spans, DType.FLOAT32, Sum, 1.0, 1.0))
            with pytest.raises(HorovodInternalError) as again:
                plane.allreduce(spans, DType.FLOAT32, Sum, 1.0, 1.0)
            assert again.value is raised.value is plane.error
            fakes.cuda.fake_heal()


def test_a_rank_that_cannot_load_a_kernel_fails_in_its_first_collective(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first kernel, and one after others, which are freed."""
    for told in (r"cuModuleLoadData failed.*NVIDIA_DRIVER_CAPABILITIES", r"cuModuleGetFunction failed.*\(500\)"):
        if "LoadData" in told:
            fakes.fail("cuModuleLoadData", 221)
        else:
            monkeypatch.setattr(mover, "text", lambda element: text(element) if element.bits < 64 else "")
        with opened(fakes, 1) as group, pytest.raises(HorovodInternalError, match=told):
            group.planes[0].barrier()
        assert (fakes.held()["streams"], fakes.held()["modules"]) == (0, 0)


def test_kernels_that_the_gpu_may_still_have_to_run_outlive_the_plane(fakes: Fakes) -> None:
    with opened(fakes, 1) as group:
        plane = group.planes[0]
        plane.barrier()  # and nobody waits for it
        assert plane._gpu is not None
        handles = [kernel.handle for kernel in plane._gpu.mover._kernels.values()]
        plane.close()
    assert fakes.held()["modules"] == len(handles)
    for handle in handles:  # they may be freed now
        driver.library().cuModuleUnload(handle)
