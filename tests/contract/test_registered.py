"""Registered memory: when batches go the direct way, that bits are the same either way, and what a failure leaves."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from hvdlite.errors import HorovodInternalError, PeerLost
from hvdlite.planes.base import DataPlane
from hvdlite.tensors.dtypes import DType, Sum
from tests.contract import oracle
from tests.contract.joined import shm
from tests.contract.joined.registered import PLANE, StagingPlane, open_staging
from tests.contract.planes import Array, Group, spans_of
from tests.harness.patience import PATIENCE_S

_COUNT = 50_001


def reduced(plane: DataPlane, own: Array, dtype: DType = DType.FLOAT32) -> Array:
    output = np.empty_like(own)
    plane.allreduce(spans_of((own, output)), dtype, Sum, 1.0, 0.5)
    return output


def in_arena(plane: DataPlane, values: Array) -> Array:
    assert isinstance(plane, StagingPlane)
    array = plane.allocate(values.nbytes).view(values.dtype)
    array[:] = values
    return array


def copied_bytes(plane: DataPlane) -> int:
    assert isinstance(plane, StagingPlane)
    return plane.counters["copied_bytes"]


@pytest.mark.parametrize("stages", [(True, False), (False, True), (True, False, True), (False, False, False, True)])
def test_ranks_that_have_registered_and_that_have_not_reduce_together(stages: tuple[bool, ...]) -> None:
    size, rng = len(stages), np.random.default_rng(5)
    with open_staging(size, PATIENCE_S, stages) as planes:
        group = Group(PLANE, planes)
        for count in (100, 3000, _COUNT, 1025, 40_000):  # in one round and through slots, in turn
            inputs = [oracle.random(rng, DType.FLOAT32, count) for _ in range(size)]
            expected = oracle.allreduce(inputs, DType.FLOAT32, Sum, 1.0, 0.5)
            for output in group.run(lambda plane, inputs=inputs: reduced(plane, inputs[plane.rank])):
                assert output.tobytes() == expected.tobytes()
        assert all(copied_bytes(plane) > 0 for plane in planes)


def test_a_program_of_both_kinds_keeps_the_ranks_together() -> None:
    """The registered ranks change with every batch, and other collectives come between."""
    rng = np.random.default_rng(6)
    with open_staging(3, PATIENCE_S) as planes:
        group = Group(PLANE, planes)
        for turn in range(40):
            for plane in planes:
                plane.stages = bool(rng.integers(0, 4))
            inputs = [oracle.random(rng, DType.INT32, 1 + 9000 * (turn % 3)) for _ in planes]
            outputs = group.run(lambda plane, inputs=inputs: reduced(plane, inputs[plane.rank], DType.INT32))
            group.run(lambda plane: plane.barrier())
            expected = oracle.allreduce(inputs, DType.INT32, Sum, 1.0, 0.5)
            assert all(output.tobytes() == expected.tobytes() for output in outputs)


@pytest.mark.parametrize("dtype", DType, ids=str)
def test_bits_are_those_of_the_slots_and_nothing_is_copied(dtype: DType) -> None:
    rng = np.random.default_rng(int(dtype))
    inputs = [oracle.random(rng, dtype, _COUNT) for _ in range(3)]
    with shm.PLANE.open(3, PATIENCE_S) as planes:
        through_slots = Group(shm.PLANE, planes).run(lambda plane: reduced(plane, inputs[plane.rank], dtype))
    with open_staging(3, PATIENCE_S) as planes:
        directly = Group(PLANE, planes).run(lambda plane: reduced(plane, inputs[plane.rank], dtype))
        assert [copied_bytes(plane) for plane in planes] == [0, 0, 0]
    assert [array.tobytes() for array in directly] == [array.tobytes() for array in through_slots]


def test_offsets_may_differ_from_rank_to_rank_and_rows_lie_anywhere() -> None:
    with open_staging(2, PATIENCE_S, (False, False)) as planes:

        def work(plane: DataPlane) -> Array:
            assert isinstance(plane, StagingPlane)
            _ = [plane.allocate(5000) for _ in range(3 * plane.rank)]
            whole = in_arena(plane, np.arange(_COUNT, dtype=np.int64))
            rows = [whole[20_000:30_001], whole[:7], whole[7:20_000]]  # views, out of order; the rest is not touched
            plane.allreduce(spans_of(*((row, row) for row in rows)), DType.INT64, Sum, 1.0, 1.0)
            assert plane.counters["copied_bytes"] == 0
            return whole.copy()

        expected = np.arange(_COUNT)
        expected[:30_001] *= 2
        for array in Group(PLANE, planes).run(work):
            assert (array == expected).all()


@pytest.mark.parametrize("which", ["in", "out", "one row"])
def test_what_lies_only_partly_in_the_arena_goes_through_the_slots(which: str) -> None:
    with open_staging(2, PATIENCE_S, (False, False)) as planes:

        def work(plane: DataPlane) -> Array:
            assert isinstance(plane, StagingPlane)
            ordinary, registered = np.ones(_COUNT), in_arena(plane, np.ones(_COUNT))
            pairs = {
                "in": [(registered, ordinary)],
                "out": [(ordinary, registered)],
                "one row": [(registered[:9000], registered[:9000]), (ordinary[9000:], registered[9000:])],
            }[which]
            plane.allreduce(spans_of(*pairs), DType.FLOAT64, Sum, 1.0, 1.0)
            assert plane.counters["copied_bytes"] > 0
            return pairs[0][1].copy()

        for array in Group(PLANE, planes).run(work):
            assert (array == 2).all()


def test_a_failed_rank_keeps_its_arrays_to_itself() -> None:
    with open_staging(2, PATIENCE_S, (False, False)) as planes:
        first, second = planes
        kept, other = in_arena(first, np.full(_COUNT, 7)), in_arena(second, np.full(_COUNT, 8))
        small = in_arena(first, np.full(3, 5))
        raised: list[BaseException] = []

        def wait_for_the_other() -> None:
            try:
                first.allreduce(spans_of((kept, kept)), DType.INT64, Sum, 1.0, 1.0)
            except HorovodInternalError as error:
                raised.append(error)

        waiter = threading.Thread(target=wait_for_the_other)
        waiter.start()
        waiter.join(0.3)
        assert waiter.is_alive()  # its offer stands
        error = PeerLost(1, "here", "it was stopped")
        first.abort(error)
        waiter.join(PATIENCE_S)
        assert raised == [error]
        assert not first.arena.is_shared
        assert second.arena.is_shared
        assert (kept == 7).all()
        assert (small == 5).all()
        # The late rank goes on where it was: it finds the offer and writes its share, which is the last, into the file.
        late = threading.Timer(0.2, lambda: second.abort(PeerLost(0, "here", "it gave up")))
        late.start()
        with pytest.raises(HorovodInternalError):
            second.allreduce(spans_of((other, other)), DType.INT64, Sum, 1.0, 1.0)
        late.join()
        assert os.pread(first.arena._fd, 8, kept.nbytes - 8) == other[-1:].tobytes()
        assert (kept == 7).all()
        assert (small == 5).all()
