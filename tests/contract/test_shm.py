"""The shared-memory plane beyond the contract: its geometry, its waiting, its life across forks."""

from __future__ import annotations

import os
import threading
from contextlib import closing

import numpy as np
import pytest

from hvdlite.errors import HorovodInternalError
from hvdlite.memory.segment import create
from hvdlite.planes.base import DataPlane
from hvdlite.planes.shm.plane import ShmPlane, geometry
from hvdlite.settings import Settings
from hvdlite.tensors.dtypes import DType, Sum
from tests.contract.joined.shm import PLANE
from tests.contract.planes import Group, spans_of
from tests.harness.effort import Effort
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S


def test_geometry_depends_on_cores_and_obeys_settings() -> None:
    roomy, crowded = geometry(Settings(), 2, cores=2), geometry(Settings(), 4, cores=2)
    assert crowded.chunk_bytes > roomy.chunk_bytes
    chosen = geometry(Settings(shm_chunk=8192, shm_slots=3), 4, cores=2)
    assert (chosen.chunk_bytes, chosen.slots) == (8192, 3)
    for size in (2, 64, 1000):
        assert geometry(Settings(), size, cores=4).nbytes <= 64 << 20
    with pytest.raises(ValueError, match="HVDLITE_SHM_CHUNK=2147483648"):
        geometry(Settings(shm_chunk=2 << 30), 2, cores=2)


def test_ranks_that_disagree_about_the_geometry_are_told() -> None:
    wide, narrow = (Settings(shm_chunk=chunk) for chunk in (8192, 4096))
    fd = create(geometry(wide, 2).nbytes)
    with (
        closing(ShmPlane(member(0, "aa"), wide, os.dup(fd))),
        pytest.raises(HorovodInternalError, match="rank 1 .* HVDLITE_SHM_SLOTS must be equal"),
    ):
        ShmPlane(member(1, "aa"), narrow, fd)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_batch_is_copied_through_the_slots_and_nowhere_else(size: int) -> None:
    """On n ranks: n - 1 parts into the slots and n - 1 out of them on every rank, and the own part to its tensors."""

    def work(plane: DataPlane) -> tuple[int, int]:
        assert isinstance(plane, ShmPlane)
        tensors = [np.ones(9_999 + index, np.float32) for index in range(50)]
        before = plane.counters["copied_bytes"]
        plane.allreduce(spans_of(*((tensor, tensor) for tensor in tensors)), DType.FLOAT32, Sum, 1.0, 1.0)
        assert all((tensor == size).all() for tensor in tensors)
        return sum(tensor.nbytes for tensor in tensors), plane.counters["copied_bytes"] - before

    with PLANE.open(size, PATIENCE_S) as planes:
        nbytes, copied = zip(*Group(PLANE, planes).run(work), strict=True)
    assert sum(copied) == nbytes[0] * (2 * (size - 1) + 1)


def test_a_waiting_rank_uses_no_processor() -> None:
    def work(plane: DataPlane) -> str:
        plane.barrier()
        if plane.rank == 1:
            threading.Event().wait(1.0)
        effort = Effort(of_thread=True)
        plane.barrier()
        return effort.excess(wakes=20, within_s=1.0)

    with PLANE.open(2, PATIENCE_S) as planes:
        assert Group(PLANE, planes).run(work) == ["", ""]


def test_a_forked_child_can_neither_use_nor_harm_the_plane() -> None:
    with PLANE.open(2, PATIENCE_S) as planes:
        group = Group(PLANE, planes)
        group.run(lambda plane: plane.barrier())
        child = os.fork()
        if child == 0:
            try:
                planes[0].barrier()
            except HorovodInternalError as error:
                planes[0].close()
                os._exit(0 if "forked" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        group.run(lambda plane: plane.barrier())


def test_vectors_beyond_four_gibibytes_are_counted_in_64_bits() -> None:
    """The same 16 MiB appear 257 times in the list of spans: over 4 GiB in all."""
    with PLANE.open(1, PATIENCE_S) as planes:
        array = np.ones(4 << 20, np.float32)
        spans = np.repeat(spans_of((array, array)), 257, axis=0)
        planes[0].allreduce(spans, DType.FLOAT32, Sum, 1.0, 1.0)
        assert (array == 1).all()


def test_arguments_for_another_number_of_ranks_are_refused() -> None:
    nothing, matrix = spans_of(), np.zeros((2, 2), np.uint64)
    with PLANE.open(2, PATIENCE_S) as planes:
        with pytest.raises(ValueError, match="allgather needs the spans of 2 ranks, got 3"):
            planes[0].allgather([nothing] * 3)
        with pytest.raises(ValueError, match="reducescatter needs the spans of 2 ranks, got 1"):
            planes[0].reducescatter([nothing], DType.FLOAT32, Sum, 1.0, 1.0)
        with pytest.raises(ValueError, match="alltoall needs the spans of 2 ranks, got 1"):
            planes[0].alltoall([nothing] * 2, [nothing], matrix)
        with pytest.raises(ValueError, match=r"alltoall needs a matrix of shape \(2, 2\), not \(1, 2\)"):
            planes[0].alltoall([nothing] * 2, [nothing] * 2, matrix[1:])
