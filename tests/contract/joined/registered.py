"""The shared-memory plane joins again, with the tensors of all-reduces in memory that all ranks have mapped.

A tensor of the suite is copied there and its result back, so that the suite is the same for all planes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

import numpy as np

from hvdlite.members.membership import Membership
from hvdlite.memory import arena, segment
from hvdlite.memory.arena import Arena, Regions
from hvdlite.planes.base import DataPlane
from hvdlite.planes.shm.plane import ShmPlane, geometry
from hvdlite.settings import Settings
from hvdlite.tensors.buffer import Spans
from hvdlite.tensors.dtypes import DType
from tests.contract.planes import Array, PlaneUnderTest
from tests.harness.members import member


class StagingPlane(ShmPlane):
    """Rank ``rank`` with an arena of its own group; all-reduces are staged there, unless ``stages`` is false."""

    def __init__(self, members: Membership, options: Settings, fd: int, arena: Arena, stages: bool = True) -> None:
        super().__init__(members, options, fd)
        self.attach_arena(Regions(arena, range(self.size)))
        self.arena = arena
        self.stages = stages

    def allreduce(self, spans: Spans, dtype: DType, op: int, prescale: float, postscale: float) -> None:
        if not self.stages:
            super().allreduce(spans, dtype, op, prescale, postscale)
            return
        staged: list[tuple[Array, Array]] = []
        for read, write, nbytes in spans.tolist():
            source = self.allocate(nbytes)
            ctypes.memmove(source.ctypes.data, read, nbytes)
            staged.append((source, source if write == read else self.allocate(nbytes)))
        rows = [(source.ctypes.data, target.ctypes.data, target.nbytes) for source, target in staged]
        super().allreduce(np.array(rows, np.uint64).reshape(-1, 3), dtype, op, prescale, postscale)
        for (_, target), (_, write, nbytes) in zip(staged, spans.tolist(), strict=True):
            ctypes.memmove(write, target.ctypes.data, nbytes)

    def allocate(self, nbytes: int) -> Array:
        return np.asarray(self.arena.allocate(nbytes)) if nbytes else np.empty(0, np.uint8)


@contextmanager
def open_staging(
    size: int, progress_timeout_s: float, stages: Sequence[bool] | None = None
) -> Iterator[Sequence[StagingPlane]]:
    """The planes of ranks that stage as ``stages`` says, by default all of them."""
    options = Settings(shm_chunk=4096, progress_timeout=progress_timeout_s)
    memory, slots = arena.create_arena(size), segment.create(geometry(options, size).nbytes)
    assert memory is not None
    planes: list[StagingPlane] = []
    with ExitStack() as stack:
        stack.callback(planes.clear)  # who still has the list has no arena, which would keep the memory
        stack.callback(os.close, slots)
        stack.callback(os.close, memory)
        for rank, does_stage in enumerate(stages or [True] * size):
            own = Arena(os.dup(memory), rank, size)
            planes.append(StagingPlane(member(rank, "a" * size), options, os.dup(slots), own, does_stage))
            stack.enter_context(closing(planes[-1]))
        yield planes


@contextmanager
def _open(size: int, progress_timeout_s: float) -> Iterator[Sequence[DataPlane]]:
    with open_staging(size, progress_timeout_s) as planes:
        yield planes


PLANE = PlaneUnderTest("registered", _open, sizes=(1, 2, 3, 4, 5), folds_in_rank_order=True)
