"""The plane of the ranks of one host: collectives through a segment of shared memory, run by native code.

A collective is one native call without the GIL; `docs/dataplanes.md` explains the algorithms. All ranks map the same
segment with one `geometry`, which they compute from the same settings.

A forked child has no mapping of the segment (and no other ranks that expect it): its collectives raise, its `close`
does nothing.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hvdlite import native
from hvdlite.errors import HorovodInternalError, HvdError
from hvdlite.members.membership import Membership
from hvdlite.memory.arena import Arena, Regions
from hvdlite.planes.base import HostPlane
from hvdlite.settings import Settings
from hvdlite.spin import native_spin_ns
from hvdlite.tensors.buffer import Matrix, Spans
from hvdlite.tensors.dtypes import DType

# benchmarks/log.md has the measurements behind these.
_CHUNK_BYTES = 256 << 10
_CHUNK_BYTES_OVERSUBSCRIBED = 512 << 10
_SEGMENT_LIMIT_BYTES = 64 << 20


class Geometry(NamedTuple):
    """The layout of a segment, equal on all its ranks."""

    nbytes: int
    chunk_bytes: int
    slots: int


def geometry(options: Settings, size: int, cores: int | None = None) -> Geometry:
    """Returns the geometry for ``size`` ranks on ``cores`` (default: the cores of this process) from the options.

    By default, ranks that share cores use longer chunks, since each wait is a context switch, and many ranks use
    shorter ones, so that the segment stays below 64 MiB. Raises ValueError for invalid options.
    """
    slots, chunk_bytes = options.shm_slots, options.shm_chunk
    is_oversubscribed = size > (len(os.sched_getaffinity(0)) if cores is None else cores)
    if chunk_bytes == 0:
        preferred = _CHUNK_BYTES_OVERSUBSCRIBED if is_oversubscribed else _CHUNK_BYTES
        chunk_bytes = min(preferred, _SEGMENT_LIMIT_BYTES // (2 * size * slots))
    nbytes = int(native.library().hvd_shm_bytes(size, chunk_bytes, slots))
    if nbytes == 0:
        raise ValueError(
            f"HVDLITE_SHM_CHUNK={chunk_bytes} and HVDLITE_SHM_SLOTS={slots} do not make a segment for {size} ranks; "
            "a chunk has 64 bytes to 1 GiB, a rank 2 to 1024 slots, and a host at most 1024 ranks"
        )
    return Geometry(nbytes, chunk_bytes, slots)


class ShmPlane(HostPlane):
    """A rank of those that map one segment. All give options that make the same `geometry`."""

    name = "shm"

    def __init__(self, members: Membership, options: Settings, fd: int) -> None:
        """Maps the segment ``fd``, and closes the descriptor, also when it fails.

        Raises HorovodInternalError if the segment is too small or other ranks map it with another geometry.
        """
        self.rank, self.size = rank, size = members.rank, members.size
        self._arena: Arena | None = None
        self._name = members.number
        shape = geometry(options, size)
        self._library = native.library()
        self._owner_pid = os.getpid()
        self._handle: ctypes.c_void_p | None = None
        self._handle_lock = threading.Lock()  # `abort` comes from other threads, perhaps during `close`
        handle = ctypes.c_void_p()
        try:
            status = self._library.hvd_shm_open(
                fd,
                rank,
                size,
                shape.chunk_bytes,
                shape.slots,
                native_spin_ns(options.spin, size),
                round(options.progress_timeout * 1e9),
                ctypes.byref(handle),
            )
        finally:
            os.close(fd)
        if status == native.INVALID:
            raise HorovodInternalError(
                f"rank {self._name} cannot use the shared segment with {shape.chunk_bytes} bytes a slot and "
                f"{shape.slots} slots for {size} ranks; HVDLITE_SHM_CHUNK and HVDLITE_SHM_SLOTS must be equal on all "
                "ranks of a host."
            )
        native.check(status, "mapping the shared segment")
        self._handle = handle

    def attach_arena(self, regions: Regions) -> None:
        self._arena = regions.arena
        numbers = np.array(regions.numbers, np.int32)
        native.check(
            self._library.hvd_shm_use_arena(self._handle, regions.arena.handle, numbers.ctypes.data), "using the arena"
        )

    def allreduce(self, spans: Spans, dtype: DType, op: int, prescale: float, postscale: float) -> None:
        handle = self._usable_handle("allreduce")
        reduction = native.Reduction(int(dtype), op, prescale, postscale)
        status = self._library.hvd_shm_allreduce(handle, spans.ctypes.data, len(spans), ctypes.byref(reduction))
        self._check(status, "allreduce")

    def allgather(self, streams: Sequence[Spans]) -> None:
        handle = self._usable_handle("allgather")
        rows, counts = self._joined(streams, "allgather")
        self._check(self._library.hvd_shm_allgather(handle, rows.ctypes.data, counts.ctypes.data), "allgather")

    def reducescatter(self, parts: Sequence[Spans], dtype: DType, op: int, prescale: float, postscale: float) -> None:
        self._reducescatter(parts, native.Reduction(int(dtype), op, prescale, postscale), None)

    def reduce_partials(self, parts: Sequence[Spans], dtype: DType, op: int, prescale: float, partials: int) -> None:
        self._reducescatter(parts, native.Reduction(int(dtype), op, prescale, 1.0), partials)

    def _reducescatter(self, parts: Sequence[Spans], reduction: native.Reduction, partials: int | None) -> None:
        handle = self._usable_handle("reducescatter")
        rows, counts = self._joined(parts, "reducescatter")
        status = self._library.hvd_shm_reducescatter(
            handle, rows.ctypes.data, counts.ctypes.data, ctypes.byref(reduction), partials
        )
        self._check(status, "reducescatter")

    def alltoall(self, sends: Sequence[Spans], receives: Sequence[Spans], matrix: Matrix) -> None:
        handle = self._usable_handle("alltoall")
        sent, send_counts = self._joined(sends, "alltoall")
        received, receive_counts = self._joined(receives, "alltoall")
        cells = self._cells_of(matrix)
        status = self._library.hvd_shm_alltoall(
            handle,
            sent.ctypes.data,
            send_counts.ctypes.data,
            received.ctypes.data,
            receive_counts.ctypes.data,
            cells.ctypes.data,
        )
        self._check(status, "alltoall")

    def barrier(self) -> None:
        self._check(self._library.hvd_shm_barrier(self._usable_handle("barrier")), "barrier")

    @property
    def counters(self) -> Mapping[str, int]:
        """The bytes that this rank has copied so far, through the slots and between spans."""
        with self._handle_lock:
            is_ours = self._handle is not None and os.getpid() == self._owner_pid
            return {"copied_bytes": self._library.hvd_shm_copied_bytes(self._handle) if is_ours else 0}

    def abort(self, error: HvdError) -> None:
        with self._handle_lock:
            self._error = self._error or error
            if self._handle is not None:
                self._library.hvd_shm_abort(self._handle)

    def close(self) -> None:
        with self._handle_lock:
            handle, self._handle = self._handle, None
        if handle is not None and os.getpid() == self._owner_pid:
            self._library.hvd_shm_close(handle)
            self._arena = None

    def _usable_handle(self, what: str) -> ctypes.c_void_p:
        self._refuse_if_aborted()
        if self._handle is None or os.getpid() != self._owner_pid:
            reason = "the plane is closed" if self._handle is None else "this process is a forked child of the rank's"
            raise HorovodInternalError(f"{what} failed on rank {self._name}: {reason}; call hvdlite.init() here first.")
        return self._handle

    def _check(self, status: int, what: str) -> None:
        if status != native.OK and (arena := self._arena) is not None:
            arena.stop_sharing()  # a peer may still be writing
        native.check(status, f"{what} on rank {self._name}", self._error)
