"""The plane of the tests' device joins the contract suite: what the suite has in the host's memory is copied there."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple

import numpy as np

from hvdlite.planes.base import DataPlane
from hvdlite.tensors.buffer import Matrix, Spans
from hvdlite.tensors.dtypes import DType
from tests.contract.joined.zmq import open_ring
from tests.contract.planes import PlaneUnderTest
from tests.harness.device import DeviceArray, DevicePlane, memory

_LINE = 64


class _Staged(NamedTuple):
    """The host address for ``nbytes`` of ``array``, from ``begin`` on; ``source`` is kept alive."""

    write: int
    nbytes: int
    array: DeviceArray
    begin: int
    source: DeviceArray


Staged = list[_Staged]


class StagingPlane(DevicePlane):
    """Copies its input from the host's memory to the device, runs there, and waits."""

    def allreduce(self, spans: Spans, dtype: DType, op: int, prescale: float, postscale: float) -> None:  # type: ignore[override]
        staged: Staged = []
        super().allreduce(_on_device(spans, staged), dtype, op, prescale, postscale).wait()
        _copy_back(staged)

    def allgather(self, streams: Sequence[Spans]) -> None:  # type: ignore[override]
        staged: Staged = []
        super().allgather([_on_device(spans, staged) for spans in streams]).wait()
        _copy_back(staged)

    def reducescatter(  # type: ignore[override]
        self, parts: Sequence[Spans], dtype: DType, op: int, prescale: float, postscale: float
    ) -> None:
        staged: list[Staged] = [[] for _ in parts]
        on_device = [_on_device(spans, own) for spans, own in zip(parts, staged, strict=True)]
        super().reducescatter(on_device, dtype, op, prescale, postscale).wait()
        _copy_back(staged[self.rank])

    def alltoall(self, sends: Sequence[Spans], receives: Sequence[Spans], matrix: Matrix) -> None:  # type: ignore[override]
        sent: Staged = []
        received: Staged = []
        out = [_on_device(spans, sent) for spans in sends]
        super().alltoall(out, [_on_device(spans, received) for spans in receives], matrix).wait()
        _copy_back(received)

    def barrier(self) -> None:  # type: ignore[override]
        super().barrier().wait()


def _on_device(spans: Spans, staged: Staged) -> Spans:
    """``spans`` over copies of what they read; ``staged`` gets what they write."""
    room = [-(-nbytes // _LINE) * _LINE for nbytes in spans[:, 2].tolist()]
    sources, targets = (DeviceArray((sum(room),), np.uint8) for _ in range(2))
    rows, begin = [], 0
    for (read, write, nbytes), length in zip(spans.tolist(), room, strict=True):
        if read and nbytes:
            ctypes.memmove(sources.on_device()[begin:].ctypes.data, read, nbytes)
        target = sources if write == read else targets
        staged.append(_Staged(write, nbytes, target, begin, sources))
        rows.append((sources.address + begin if read else 0, target.address + begin if write else 0, nbytes))
        begin += length
    return np.array(rows, np.uint64).reshape(-1, 3)


def _copy_back(staged: Staged) -> None:
    for write, nbytes, array, begin, _ in staged:
        if write and nbytes:
            ctypes.memmove(write, array.on_device()[begin:].ctypes.data, nbytes)


@contextmanager
def _open(size: int, progress_timeout_s: float) -> Iterator[Sequence[DataPlane]]:
    memory()  # before threads ask for it
    with ExitStack() as stack:
        stack.callback(_forget_memory)
        rings = stack.enter_context(open_ring(size, progress_timeout_s))
        yield [stack.enter_context(closing(StagingPlane(ring))) for ring in rings]


def _forget_memory() -> None:
    gc.collect()
    memory().close()
    memory.cache_clear()


PLANE = PlaneUnderTest("device", _open, sizes=(2, 3), folds_in_rank_order=False)
