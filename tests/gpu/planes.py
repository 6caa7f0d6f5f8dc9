"""Planes of NCCL's fake whose ranks are threads, and their arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from hvdlite.planes.nccl.plane import NcclPlane
from hvdlite.settings import Settings
from hvdlite.tensors.buffer import Spans
from tests.contract.joined import shm
from tests.gpu.fake import Fakes, GpuArray
from tests.harness import thread_ranks
from tests.harness.members import member
from tests.harness.patience import PATIENCE_S

T = TypeVar("T")


class Planes:
    """The planes of one group, whose ranks have the numbers from 10 on. Rank r uses GPU r % 2."""

    def __init__(self, fakes: Fakes, planes: Sequence[NcclPlane]) -> None:
        self.fakes, self.planes, self.size = fakes, planes, len(planes)

    def run(self, work: Callable[[NcclPlane], T]) -> list[T]:
        """``work(plane)`` on all ranks at once; the values in rank order, or the first error."""
        return thread_ranks(self.size, lambda rank: work(self.planes[rank]))

    def array(self, plane: NcclPlane, values: Any) -> GpuArray:
        return self.fakes.array(np.asarray(values), plane.rank % 2)

    def like(self, plane: NcclPlane, array: GpuArray) -> GpuArray:
        return self.fakes.empty(array.shape, array.dtype, plane.rank % 2)


@contextmanager
def opened(fakes: Fakes, size: int, timeout_s: float = PATIENCE_S, grace_s: float = 0.0) -> Iterator[Planes]:
    with ExitStack() as stack:
        of_host = stack.enter_context(shm.PLANE.open(size, timeout_s))
        numbers = tuple(range(10, 10 + size))
        planes = [
            NcclPlane(
                replace(member(rank, "a" * size), ranks=numbers),
                Settings(progress_timeout=timeout_s, peer_timeout=grace_s),
            )
            for rank in range(size)
        ]
        for plane, each in zip(planes, of_host, strict=True):
            plane.attach_host_plane(each)
        stack.callback(lambda: thread_ranks(size, lambda rank: planes[rank].close()))  # together, as NCCL wants it
        yield Planes(fakes, planes)


def spans_of(*pairs: tuple[GpuArray, GpuArray]) -> Spans:
    """The rows of (array to read, array to write) pairs."""
    rows = [(read.address, write.address, write.nbytes) for read, write in pairs]
    return np.array(rows, np.uint64).reshape(-1, 3)


def receiving(*outputs: GpuArray) -> Spans:
    return np.array([(0, each.address, each.nbytes) for each in outputs], np.uint64).reshape(-1, 3)


def sending(*inputs: GpuArray) -> Spans:
    return np.array([(each.address, 0, each.nbytes) for each in inputs], np.uint64).reshape(-1, 3)
