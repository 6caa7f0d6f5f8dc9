"""The plane of a group of one rank: scales and copies, without communication."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from hvdlite import native
from hvdlite.errors import HvdError
from hvdlite.planes.arithmetic import BITS, closed, opened
from hvdlite.planes.base import HostPlane
from hvdlite.tensors.buffer import Matrix, Spans, paired
from hvdlite.tensors.dtypes import DType


class LocalPlane(HostPlane):
    """Runs every collective with rank 0 of 1."""

    name = "local"
    rank = 0
    size = 1

    def __init__(self) -> None:
        self._library = None if native.absence() else native.library()

    def allreduce(self, spans: Spans, dtype: DType, op: int, prescale: float, postscale: float) -> None:
        self._refuse_if_aborted()
        if self._library is None:
            return _reduce(spans, dtype, op, prescale, postscale)
        reduction, itemsize = ctypes.byref(native.Reduction(int(dtype), op, prescale, postscale)), dtype.itemsize
        reduce, source = self._library.hvd_reduce, (ctypes.c_void_p * 1)()
        for read, write, nbytes in spans.tolist():
            source[0] = read
            if status := reduce(write, source, 1, nbytes // itemsize, reduction):
                native.check(status, "allreduce")
        return None

    def allgather(self, streams: Sequence[Spans]) -> None:
        self._refuse_if_aborted()
        for read, write, nbytes in streams[0].tolist():
            if read != write:
                ctypes.memmove(write, read, nbytes)

    def reducescatter(self, parts: Sequence[Spans], dtype: DType, op: int, prescale: float, postscale: float) -> None:
        self.allreduce(parts[0], dtype, op, prescale, postscale)

    def reduce_partials(self, parts: Sequence[Spans], dtype: DType, op: int, prescale: float, partials: int) -> None:
        self._refuse_if_aborted()
        assert self._library is not None  # the hierarchical plane, the only caller, needs the library too
        reduction, rows = native.Reduction(int(dtype), op, prescale, 1.0), parts[0]
        status = self._library.hvd_open_partials(partials, rows.ctypes.data, len(rows), ctypes.byref(reduction))
        native.check(status, "reducescatter")

    def alltoall(self, sends: Sequence[Spans], receives: Sequence[Spans], matrix: Matrix) -> None:
        self._refuse_if_aborted()
        self._expect_bytes(sends, receives, matrix)
        for read, write, nbytes in paired(sends[0], receives[0]):
            ctypes.memmove(write, read, nbytes)

    def barrier(self) -> None:
        self._refuse_if_aborted()

    def abort(self, error: HvdError) -> None:
        self._error = self._error or error

    def close(self) -> None:
        pass


def _reduce(spans: Spans, dtype: DType, op: int, prescale: float, postscale: float) -> None:
    """All-reduces one rank's tensors without the native library."""
    with np.errstate(all="ignore"):
        for read, write, nbytes in spans.tolist():
            if nbytes:
                bits = np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(read)).view(BITS[dtype])
                result = closed(opened(bits, dtype, op, prescale), dtype, op, postscale).copy()
                ctypes.memmove(write, result.ctypes.data, nbytes)
