"""The plane for the memory of CUDA devices: collectives that NCCL launches on a stream of the plane.

The communicator is made with the first collective, because only its addresses tell which GPU this rank uses: scripts
choose it after `init`. All ranks run the same collectives in the same order, so they make it together.

The thread that runs a batch launches it and goes on. Its end is an event of the stream, for which `Launched.wait` and
streams that use the result wait. If a peer is missing, `Watcher` ends the kernels, and so those waits.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from hvdlite.cuda import driver
from hvdlite.cuda.events import Events, Moment, latest
from hvdlite.cuda.memory import DeviceMemory, copy, device_of
from hvdlite.errors import HorovodInternalError, HvdError
from hvdlite.planes.base import DataPlane
from hvdlite.planes.nccl.gpu import Gpu
from hvdlite.planes.nccl.launched import Launched
from hvdlite.planes.nccl.library import BYTES, OPERATIONS
from hvdlite.planes.nccl.packing import Pack, across, is_even
from hvdlite.planes.nccl.reduction import Reduction, lack, reduction
from hvdlite.planes.nccl.watcher import Watcher
from hvdlite.tensors.buffer import Matrix, Spans, paired
from hvdlite.tensors.dtypes import DType, Max

Give = Callable[[Gpu], None]
"""Gives a GPU a part of a collective."""


class NcclPlane(DataPlane):
    """Rank ``rank`` of the ``size`` ranks that have the ``unique`` id.

    Its GPU is that of the first address; without one, the ``local_rank``-th. Messages call the rank ``label``. An error
    that NCCL reports of itself ends the plane after ``grace_s``, in which the group may find that a peer is lost.
    """

    name = "nccl"

    def __init__(
        self,
        rank: int,
        size: int,
        unique: bytes,
        *,
        local_rank: int,
        label: int,
        progress_timeout_s: float,
        grace_s: float,
    ) -> None:
        self.rank = rank
        self.size = size
        self._unique = unique
        self._local_rank = local_rank
        self._label = label
        self._progress_timeout_s = progress_timeout_s
        self._grace_s = grace_s
        self._owner_pid = os.getpid()
        self._events: dict[int, Events] = {}  # by the number of the GPU
        self._marks: Sequence[Moment] = ()  # for which the next collective waits
        self._gpu: Gpu | None = None
        self._is_closed = False
        self._watcher: Watcher | None = None
        self._launched: deque[Launched] = deque()  # and not passed, in order
        self._passed_at = 0.0

    def allreduce(self, spans: Spans, dtype: DType, op: int, prescale: float, postscale: float) -> Launched | None:
        rows = [row for row in spans.tolist() if row[2]]
        if not rows:
            self._refuse_if_aborted()
            return None
        chosen = reduction(dtype, op, prescale, postscale, self.size)

        def give(gpu: Gpu, operation: int) -> None:
            for read, write, nbytes in rows:
                count = nbytes // dtype.itemsize
                gpu.communicator.call("ncclAllReduce", read, write, count, chosen.dtype, operation)

        return self._reduce("allreduce", rows[0][0], chosen, give)

    def reducescatter(
        self, parts: Sequence[Spans], dtype: DType, op: int, prescale: float, postscale: float
    ) -> Launched | None:
        rows = [(root, *row) for root, spans in enumerate(parts) for row in spans.tolist() if row[2]]
        if not rows:
            self._refuse_if_aborted()
            return None
        chosen = reduction(dtype, op, prescale, postscale, self.size)
        packs: list[Pack] = []

        def give(gpu: Gpu, operation: int) -> None:
            for root, read, write, nbytes in rows:
                target, count = write if root == self.rank else 0, nbytes // dtype.itemsize
                gpu.communicator.call("ncclReduce", read, target, count, chosen.dtype, operation, root)

        def give_even(gpu: Gpu, operation: int) -> None:
            for pack, (_, write, nbytes) in zip(packs, parts[self.rank].tolist(), strict=True):
                count = nbytes // dtype.itemsize
                gpu.communicator.call("ncclReduceScatter", pack.address, write, count, chosen.dtype, operation)

        def begin(gpu: Gpu) -> None:
            packs.extend(Pack(gpu.stream, each) for each in across(parts, 0))
            for pack in packs:
                pack.gather()

        def finish(gpu: Gpu) -> None:
            for pack in packs:
                pack.close()

        if is_even(parts):
            return self._reduce("reducescatter", rows[0][1], chosen, give_even, begin, finish)
        return self._reduce("reducescatter", rows[0][1], chosen, give)

    def allgather(self, streams: Sequence[Spans]) -> Launched | None:
        rows = [(root, *row) for root, spans in enumerate(streams) for row in spans.tolist() if row[2]]
        if not rows:
            self._refuse_if_aborted()
            return None
        packs: list[Pack] = []

        def give(gpu: Gpu) -> None:
            with gpu.communicator.grouped():
                for root, read, write, nbytes in rows:
                    source = read if root == self.rank else write
                    gpu.communicator.call("ncclBroadcast", source, write, nbytes, BYTES, root)

        def give_even(gpu: Gpu) -> None:
            packs.extend(Pack(gpu.stream, each) for each in across(streams, 1))
            with gpu.communicator.grouped():
                for pack, (read, _, nbytes) in zip(packs, streams[self.rank].tolist(), strict=True):
                    gpu.communicator.call("ncclAllGather", read, pack.address, nbytes, BYTES)

        def finish(gpu: Gpu) -> None:
            for pack in packs:
                pack.scatter()
                pack.close()

        return self._launch("allgather", rows[0][2], give_even if is_even(streams) else give, finish)

    def alltoall(self, sends: Sequence[Spans], receives: Sequence[Spans], matrix: Matrix) -> Launched | None:
        """Sends as `DataPlane.alltoall` does: one message from each rank to each other, packed if it has many rows."""
        if not matrix.any():  # then all ranks have nothing; if only this one has not, it still makes a communicator
            self._refuse_if_aborted()
            return None
        reads = [[(read, nbytes) for read, _, nbytes in spans.tolist()] for spans in sends]
        writes = [[(write, nbytes) for _, write, nbytes in spans.tolist()] for spans in receives]
        address = next((address for rows in (*reads, *writes) for address, nbytes in rows if nbytes), 0)
        packs: list[tuple[Pack, Pack]] = []

        def give(gpu: Gpu) -> None:
            packs.extend(
                (Pack(gpu.stream, out), Pack(gpu.stream, into)) for out, into in self._of_others(reads, writes)
            )
            for out, _ in packs:
                out.gather()
            for read, write, nbytes in paired(sends[self.rank], receives[self.rank]):
                copy(write, read, nbytes, gpu.stream)
            with gpu.communicator.grouped():
                for peer, (out, into) in zip(self._others, packs, strict=True):
                    if out.nbytes:
                        gpu.communicator.call("ncclSend", out.address, out.nbytes, BYTES, peer)
                    if into.nbytes:
                        gpu.communicator.call("ncclRecv", into.address, into.nbytes, BYTES, peer)

        def finish(gpu: Gpu) -> None:
            for _, into in packs:
                into.scatter()
            for both in packs:
                for pack in both:
                    pack.close()

        return self._launch("alltoall", address, give, finish)

    def barrier(self) -> Launched:
        with self._failing_for_good():
            byte = DeviceMemory(self._used(0).stream, 1)

        def give(gpu: Gpu) -> None:
            with gpu.communicator.grouped():
                gpu.communicator.call("ncclAllReduce", byte.address, byte.address, 1, BYTES, OPERATIONS[Max])

        return self._launch("barrier", byte.address, give, lambda gpu: byte.close())

    def zeros(self, nbytes: int) -> tuple[int, Any]:
        with self._failing_for_good():
            memory = DeviceMemory(self._used(0).stream, nbytes)
            memory.fill(0)
        return memory.address, memory

    def mark(self, ordinal: int, stream: int) -> Moment:
        return self._events_of(ordinal).record(stream)

    def after(self, marks: Sequence[Moment]) -> None:
        self._marks = marks

    def refusal(self, dtype: DType, op: int, prescale: float, postscale: float) -> str:
        return lack(dtype, op, prescale, postscale, self.size)

    def abort(self, error: HvdError) -> None:
        self._error = self._error or error
        if self._watcher is not None:
            self._watcher.wake()

    def close(self) -> None:
        """Frees everything. In a forked child it does nothing."""
        if self._is_closed or os.getpid() != self._owner_pid:
            return
        self._is_closed = True
        if self._watcher is not None:
            self._watcher.close()
        if self._gpu is not None:
            if self._error is not None:
                self._gpu.communicator.abort()
            self._gpu.close()
        for events in self._events.values():
            events.close()

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _of_others(self, *lists: Sequence[Any]) -> list[tuple[Any, ...]]:
        """What ``lists`` have for each other rank."""
        return [tuple(each[peer] for each in lists) for peer in self._others]

    def _reduce(
        self,
        what: str,
        address: int,
        chosen: Reduction,
        give: Callable[[Gpu, int], None],
        begin: Give | None = None,
        finish: Give | None = None,
    ) -> Launched:
        """Does ``begin``, ``give`` as one call of NCCL with the number of the operation, and ``finish``."""

        def give_group(gpu: Gpu) -> None:
            if begin is not None:
                begin(gpu)
            with ExitStack() as stack:
                operation = chosen.operation
                if chosen.scalar is not None:
                    operation = stack.enter_context(gpu.communicator.multiplying(chosen.scalar, chosen.dtype))
                with gpu.communicator.grouped():
                    give(gpu, operation)
                self._settle(gpu, what)

        return self._launch(what, address, give_group, finish)

    def _launch(self, what: str, address: int, give: Give, finish: Give | None = None) -> Launched:
        """Does ``give``, and when that has been launched ``finish``, with the GPU of ``address``, which may be 0."""
        with self._failing_for_good():
            gpu = self._used(address)
            marks = latest(self._marks)
            for mark in marks:
                mark.event.hold_back(gpu.stream.handle)
            self._marks = ()
            give(gpu)
            self._settle(gpu, what)
            if finish is not None:
                finish(gpu)
            launched = Launched(self, gpu.moment(), marks, self._passed)
        self._launched.append(launched)
        if len(self._launched) == 1 and self._watcher is not None:  # else it looks anyway
            self._watcher.wake()
        return launched

    def _used(self, address: int) -> Gpu:
        """Returns the GPU of this plane, whose memory ``address`` is; with the first call, and all ranks, makes it."""
        if self._is_closed or os.getpid() != self._owner_pid:
            reason = "the plane is closed" if self._is_closed else "this process is a forked child of the rank's"
            raise HorovodInternalError(
                f"rank {self._label} cannot use its GPU: {reason}; call hvdlite.init() here first."
            )
        device = device_of(address) if address else None
        if self._gpu is None:
            ordinal = self._local_rank % driver.count() if device is None else device.ordinal
            self._make(ordinal)
        assert self._gpu is not None
        if device is not None and device.ordinal != self._gpu.context.ordinal:
            raise HorovodInternalError(
                f"rank {self._label} has used GPU {self._gpu.context.ordinal} in this group, and now {device.ordinal}; "
                "call torch.cuda.set_device(hvd.local_rank()) before the first collective, and use that GPU only"
            )
        return self._gpu

    def _make(self, ordinal: int) -> None:
        self._gpu = Gpu(self._events_of(ordinal), self.rank, self.size, self._unique, self._grace_s)
        self._watcher = Watcher(self._look)
        self._settle(self._gpu, "connecting the ranks' GPUs")

    def _events_of(self, ordinal: int) -> Events:
        """Returns the events of a GPU. Takes no lock, since a signal handler may end a submit anywhere."""
        if (found := self._events.get(ordinal)) is None:
            made = Events(ordinal)
            found = self._events.setdefault(ordinal, made)
            if found is not made:  # another thread was faster
                made.close()
        return found

    def _settle(self, gpu: Gpu, what: str) -> None:
        deadline = time.monotonic() + self._progress_timeout_s
        gpu.communicator.settle(f"{what} on rank {self._label}", deadline, lambda: self._error)

    def _passed(self, launched: Launched) -> None:
        """Takes note that the GPU has passed ``launched``, the first of those that it had not."""
        self._launched.popleft()
        self._passed_at = time.monotonic()
        self._refuse_if_aborted()

    def _look(self) -> bool:
        """Aborts NCCL if the plane was aborted or NCCL has failed. True if it should look again soon."""
        gpu = self._gpu
        if gpu is None:
            return False
        if self._error is None and (error := self._failure(gpu)) is not None:
            self.abort(error)
        if self._error is not None:
            gpu.communicator.abort()
            return False
        return bool(self._launched)

    def _failure(self, gpu: Gpu) -> HvdError | None:
        what = f"a collective on rank {self._label}"
        if (error := gpu.communicator.error(what)) is not None:
            return error
        try:
            first = self._launched[0]
        except IndexError:  # nothing is under way
            return None
        if first.waits_for_caller():
            return None
        since = max(first.at, self._passed_at)
        if time.monotonic() - since <= self._progress_timeout_s:
            return None
        return HorovodInternalError(
            f"{what} has not ended within HVDLITE_PROGRESS_TIMEOUT; the GPU of a rank is stopped or far behind"
        )
