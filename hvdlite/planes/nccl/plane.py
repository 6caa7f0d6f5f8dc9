"""The plane for the memory of CUDA devices: collectives that NCCL launches on a stream of the plane.

The communicator is made with the first collective, because its addresses show which GPU this rank uses: scripts choose
the GPU after `init`. All ranks run the same collectives in the same order, so they make the communicator together,
after they have exchanged which GPUs they use (`offers`).

The thread that runs a batch launches it and goes on. The end of the batch is an event of the stream, for which
`Launched.wait` and streams that use the result wait. If a peer is missing, `Watcher` ends the kernels and so the waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from hvdlite.cuda import driver
from hvdlite.cuda.events import Events, latest
from hvdlite.cuda.memory import DeviceMemory
from hvdlite.errors import HorovodInternalError, HvdError, absence_of
from hvdlite.members.membership import Membership
from hvdlite.members.part import Address, Part
from hvdlite.planes.base import DataPlane
from hvdlite.planes.gpu import GpuPlane
from hvdlite.planes.nccl.collectives import (
    Group,
    allgather,
    allreduce,
    alltoall,
    packed_allgather,
    packed_allreduce,
    packed_reducescatter,
    reducescatter,
)
from hvdlite.planes.nccl.communicator import unique_id
from hvdlite.planes.nccl.gpu import Gpu
from hvdlite.planes.nccl.launched import Launched
from hvdlite.planes.nccl.library import BYTES, OPERATIONS, apparent_absence, library
from hvdlite.planes.nccl.offers import Offer, do_all, exchange, obstacle, sharing
from hvdlite.planes.nccl.packing import is_worth_packing, packed_bytes
from hvdlite.planes.nccl.reduction import lack, lack_of_float8, reduction
from hvdlite.planes.nccl.watcher import Watcher
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.tensors.buffer import Matrix, Spans
from hvdlite.tensors.device import Device
from hvdlite.tensors.dtypes import FLOAT8, DType, ElementType, Max

_LONGEST: Final = 400  # characters of an address

T = TypeVar("T")
Give = Callable[[Gpu, Group], None]
"""Gives a GPU a collective."""


class NcclPlane(GpuPlane):
    """The plane of one of the ``members``.

    An error that NCCL reports of itself ends the plane after the peer time-out, in which the group may find that a peer
    is lost. ``lack`` names ranks without NCCL: the plane then takes no tensors.
    """

    name = "nccl"

    def __init__(self, members: Membership, options: Settings, lack: str = "") -> None:
        super().__init__(members)
        self._members = members
        self._lack = lack
        self._of_host: DataPlane | None = None  # over which the ranks agree, before NCCL can, or must not
        self._is_meeting = False
        self._progress_timeout_s = options.progress_timeout
        self._grace_s = options.peer_timeout
        self._gpu: Gpu | None = None
        self._watcher: Watcher | None = None
        self._launched: deque[Launched] = deque()  # and not passed, in order
        self._passed_at = 0.0

    def allreduce(
        self, spans: Spans, dtype: ElementType, op: int, prescale: float, postscale: float
    ) -> Launched | None:
        if (address := _first_address((spans,), 0)) is None:
            self._refuse_if_aborted()
            return None

        def give(gpu: Gpu, group: Group) -> None:
            is_packed = self._packs(gpu, [spans])
            chosen = reduction(dtype, op, prescale, postscale, self.size, is_packed)
            (packed_allreduce if is_packed else allreduce)(gpu, group, spans, chosen)

        return self._launch("allreduce", address, give)

    def reducescatter(
        self, parts: Sequence[Spans], dtype: ElementType, op: int, prescale: float, postscale: float
    ) -> Launched | None:
        if (address := _first_address(parts, 0)) is None:
            self._refuse_if_aborted()
            return None

        def give(gpu: Gpu, group: Group) -> None:
            is_packed = self._packs(gpu, parts)
            chosen = reduction(dtype, op, prescale, postscale, self.size, is_packed)
            (packed_reducescatter if is_packed else reducescatter)(gpu, group, parts, self.rank, chosen)

        return self._launch("reducescatter", address, give)

    def allgather(self, streams: Sequence[Spans]) -> Launched | None:
        if (address := _first_address(streams, 1)) is None:
            self._refuse_if_aborted()
            return None

        def give(gpu: Gpu, group: Group) -> None:
            (packed_allgather if self._packs(gpu, streams) else allgather)(gpu, group, streams, self.rank)

        return self._launch("allgather", address, give)

    def alltoall(self, sends: Sequence[Spans], receives: Sequence[Spans], matrix: Matrix) -> Launched | None:
        if not matrix.any():  # then all ranks have nothing; if only this one has not, it still makes a communicator
            self._refuse_if_aborted()
            return None
        address = _first_address(sends, 0) or _first_address(receives, 1) or 0
        return self._launch("alltoall", address, lambda gpu, group: alltoall(gpu, group, sends, receives, self.rank))

    def barrier(self) -> Launched:
        def give(gpu: Gpu, group: Group) -> None:
            byte = DeviceMemory(gpu.stream, 1)
            with group():
                gpu.communicator.call("ncclAllReduce", byte.address, byte.address, 1, BYTES, OPERATIONS[Max])
            byte.close()

        return self._launch("barrier", 0, give)

    def zeros(self, nbytes: int, dtype: DType = DType.UINT8) -> tuple[int, Any]:
        with self._failing_for_good():
            memory = DeviceMemory(self._used(0).stream, nbytes)
            memory.fill_zeros(dtype)
        return memory.address, memory

    def attach_host_plane(self, plane: DataPlane) -> None:
        self._of_host = plane

    def choose(self, device: Device) -> None:
        if self._lack:
            raise ValueError(self._lack)
        super().choose(device)

    def unsupported_reduction(
        self, device: Device, dtype: ElementType, op: int, prescale: float, postscale: float
    ) -> str:
        if dtype not in FLOAT8 or absence_of(library):  # which `choose` reports, or the first collective
            return lack(dtype, op)
        capability = driver.capability(device.ordinal)
        return lack_of_float8(library().version, capability, op, prescale, postscale, self.size)

    def abort(self, error: HvdError) -> None:
        self._error = self._error or error
        if self._is_meeting and self._of_host is not None:
            self._of_host.abort(error)  # which ends with this one anyway
        if self._watcher is not None:
            self._watcher.wake()

    def close(self) -> None:
        """Frees everything. In a forked child it does nothing."""
        if self._is_closed or self._is_forked:
            return
        self._is_closed = True
        if self._watcher is not None:
            self._watcher.close()
        if self._gpu is not None:
            if self._error is not None:
                self._gpu.communicator.abort()
            self._gpu.close(is_done=not self._launched)
        self._close_events()

    def _launch(self, what: str, address: int, give: Give) -> Launched:
        """Has ``give`` give the GPU of ``address``, which may be 0, a collective."""
        with self._failing_for_good():
            gpu = self._used(address)
            marks = latest(self._marks)
            for mark in marks:
                mark.event.hold_back(gpu.stream.handle)
            self._marks = ()
            give(gpu, partial(self._grouped, gpu, what))
            gpu.scratch.trim()
            launched = Launched(self, gpu.moment(), marks, self._passed)
        self._launched.append(launched)
        if len(self._launched) == 1 and self._watcher is not None:  # else it looks anyway
            self._watcher.wake()
        return launched

    @contextmanager
    def _grouped(self, gpu: Gpu, what: str) -> Iterator[None]:
        with gpu.communicator.grouped():
            yield
        self._settle(gpu, what)

    def _used(self, address: int) -> Gpu:
        """Returns the plane's GPU, which ``address`` belongs to. The first call makes it, together with all ranks."""
        events = self._events_for(address)
        if self._gpu is None:
            self._make(events)
        assert self._gpu is not None
        return self._gpu

    def _packs(self, gpu: Gpu, lists: Sequence[Spans]) -> bool:
        """True if all ranks pack spans, or the spans of each rank; see `is_worth_packing`."""
        if not is_worth_packing(lists):
            return False
        nbytes = sum(map(packed_bytes, lists))
        return gpu.packs.has_room(nbytes, lambda has_room: self._meeting(lambda over: do_all(has_room, over)))

    def _make(self, events: Events) -> None:
        own = self._offer(events)
        offers = self._meeting(lambda over: exchange(own, over))
        if reason := obstacle(offers, self._members.ranks, [host.name for host in self._members.hosts]):
            raise HorovodInternalError(reason)
        self._gpu = Gpu(events, self.rank, self.size, bytes.fromhex(offers[0].unique), self._grace_s)
        self._watcher = Watcher(self._look)
        self._settle(self._gpu, "connecting the ranks' GPUs")

    def _meeting(self, what: Callable[[DataPlane], T]) -> T:
        """Runs ``what`` with all ranks, over the plane for memory of the host, and returns its result."""
        assert self._of_host is not None
        self._is_meeting = True
        try:
            self._refuse_if_aborted()  # before `abort` could see that this waits
            return what(self._of_host)
        finally:
            self._is_meeting = False

    def _offer(self, events: Events) -> Offer:
        try:
            return Offer(
                version=library().version,
                gpu=events.context.identity(),
                ordinal=events.context.ordinal,
                visible=driver.count(),
                unique=unique_id().hex() if self.rank == 0 else "",
                **sharing(),
            )
        except HvdError as error:
            return Offer(lack=str(error))

    def _settle(self, gpu: Gpu, what: str) -> None:
        scope = Scope.of(self._progress_timeout_s)
        gpu.communicator.settle(f"{what} on rank {self._label}", scope, lambda: self._error)

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


class NcclPart(Part[DataPlane]):
    """Publishes why this rank cannot load NCCL; nothing if it seems to have it. Nothing is loaded before it is used."""

    def __init__(self, membership: Membership, options: Settings) -> None:
        self._membership = membership
        self._options = options

    def bind(self) -> Address:
        return apparent_absence()[:_LONGEST]

    def connect(self, addresses: Sequence[Address], scope: Scope) -> DataPlane:
        members = self._membership
        if not all(isinstance(address, str) and len(address) <= _LONGEST for address in addresses):
            raise HorovodInternalError("a rank published no valid address of NCCL; is its hvdlite the same as here?")
        lacking = [f"on rank {rank} {why}" for rank, why in zip(members.ranks, addresses, strict=True) if why]
        lack = f"tensors on GPUs need NCCL on all ranks, but {lacking[0]}" if lacking else ""
        return NcclPlane(members, self._options, lack)

    def close(self) -> None:
        pass


def _first_address(lists: Sequence[Spans], column: int) -> int | None:
    """Returns the first address in ``column`` that has bytes; None if there are none."""
    for spans in lists:
        filled = np.flatnonzero(spans[:, 2])
        if len(filled):
            return int(spans[filled[0], column])
    return None
