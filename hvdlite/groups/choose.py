"""Chooses the data planes of a group by the hosts and the libraries of its members.

If a member lacks the native library, the group uses `zmq`, the only plane for several ranks that needs none.

To add a plane, add a folder with a subclass of `DataPlane` and with a `Part`, which is made from the members and the
options and whose ``connect`` returns the plane (a ring has `NeighbourPart`). Then add a row to `_PARTS`. A plane for
the memory of another kind of device is a subclass of `DevicePlane`, with a row in `BY_DEVICE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from hvdlite.cuda.presence import KIND as GPU_KIND
from hvdlite.cuda.presence import absence_of_gpus
from hvdlite.members.membership import Membership
from hvdlite.members.part import Address, Part
from hvdlite.members.ranges import shortened
from hvdlite.planes.base import DataPlane, HostPlane
from hvdlite.planes.hierarchical import HierarchicalPlane, in_ring_order, lanes_of
from hvdlite.planes.local import LocalPlane
from hvdlite.planes.neighbours import NeighbourPart
from hvdlite.planes.ring.plane import RingPlane
from hvdlite.planes.shm.part import ArenaPart, ShmPart
from hvdlite.planes.zmq.plane import ZmqPlane
from hvdlite.scope import Scope
from hvdlite.settings import Settings
from hvdlite.tensors.device import CPU

_WITH_ARENA = ("shm", "hierarchical")
WITHOUT_NATIVE = ("auto", "local", "zmq")  # settings allowed if a rank lacks the native library


def choose(setting: str, membership: Membership) -> str:
    """Returns the name of the plane for CPU memory. Raises ValueError if the members cannot use ``setting``."""
    ranks, hosts = membership.size, len(membership.by_leader)
    if setting == "shm" and hosts > 1:
        raise ValueError(f"HVDLITE_PLANE=shm needs all ranks on one host, but there are {hosts}; use auto or ring")
    if setting == "local" and ranks > 1:
        raise ValueError(f"HVDLITE_PLANE=local is for one rank, but there are {ranks}; use auto")
    if ranks == 1:
        return "local"
    if lacking := membership.without_native:
        if setting not in WITHOUT_NATIVE:
            raise ValueError(
                f"HVDLITE_PLANE={setting} needs hvdlite's native library, which rank(s) {shortened(lacking)} cannot "
                "load; install hvdlite there from a wheel or with g++, or use auto or zmq"
            )
        return "zmq"
    if setting in ("auto", "hierarchical"):
        return "shm" if hosts == 1 else "ring" if hosts == ranks else "hierarchical"
    return setting


def plane_part(membership: Membership, options: Settings) -> Part[DataPlane]:
    """Makes the part of the plane for CPU memory."""
    return _PARTS[choose(options.plane, membership)](membership, options)


def arena_part(membership: Membership, options: Settings) -> ArenaPart | None:
    """Makes the part of the memory that the ranks of a host share; None if the plane for CPU memory cannot use it."""
    return ArenaPart(membership) if choose(options.plane, membership) in _WITH_ARENA else None


def gpu_part(membership: Membership, options: Settings) -> Part[DataPlane] | None:
    """Makes the part of the plane for GPU memory; None if this rank has no GPU.

    Every `init` calls it, so it loads no library of NVIDIA, and imports nothing if there is no GPU.
    """
    if absence_of_gpus():
        return None
    lacking = membership.without_nccl if options.gpu_plane == "auto" else []
    if lacking or options.gpu_plane == "staged":
        from hvdlite.planes.nccl.library import INSTALL
        from hvdlite.planes.staged.plane import StagedPart

        warning = (
            f"tensors on GPUs move through host memory, which is slow, because rank(s) {shortened(lacking)} have no "
            f"NCCL: {INSTALL}"
        )
        return StagedPart(membership, partial(plane_part, options=options), warning if lacking else "")
    from hvdlite.planes.nccl.plane import NcclPart

    return NcclPart(membership, options)


def lacks_nccl() -> bool:
    """True if this rank may have GPUs but seems to have no NCCL. Loads no library."""
    if absence_of_gpus():
        return False
    from hvdlite.planes.nccl import library

    return bool(library.apparent_absence())


BY_DEVICE: dict[str, Callable[[Membership, Settings], Part[DataPlane] | None]] = {
    CPU.kind: plane_part,
    GPU_KIND: gpu_part,
}
"""By kind of device: makes the part of the plane for its memory, or returns None if this rank has no such device."""


def parts_by_device(membership: Membership, options: Settings) -> dict[str, Part[DataPlane]]:
    """Makes the parts of the planes for all kinds of devices that this rank has."""
    made = {kind: make(membership, options) for kind, make in BY_DEVICE.items()}
    return {kind: part for kind, part in made.items() if part is not None}


class _LocalPart(Part[DataPlane]):
    """The part of a group of one rank."""

    def bind(self) -> Address:
        return ""

    def connect(self, addresses: Sequence[Address], scope: Scope) -> DataPlane:
        return LocalPlane()

    def close(self) -> None:
        pass


class _HierarchicalPart(Part[DataPlane]):
    """The parts of three planes: shared memory within the host, a lane across hosts, and a ring of all ranks.

    An address is the list of the addresses of the three.
    """

    def __init__(self, membership: Membership, options: Settings) -> None:
        self._membership = membership
        hosts, rank = list(membership.by_leader.values()), membership.rank
        order = in_ring_order(hosts)
        local = membership.on_this_host
        lane = next((ranks for ranks in lanes_of(hosts) if rank in ranks), (rank,))
        parts: list[Part[DataPlane]] = [
            ShmPart(membership.among(local, "local"), options) if len(local) > 1 else _LocalPart(),
            NeighbourPart(RingPlane, membership.among(lane, "lane"), options) if len(lane) > 1 else _LocalPart(),
            NeighbourPart(RingPlane, membership.among(order, "ring"), options),
        ]
        self._parts = list(zip(parts, (local, lane, order), strict=True))
        self._has_lane = len(lane) > 1

    def bind(self) -> Address:
        return [part.bind() for part, _ in self._parts]

    def connect(self, addresses: Sequence[Address], scope: Scope) -> DataPlane:
        with ExitStack() as undo:
            planes = []
            for number, (part, ranks) in enumerate(self._parts):
                planes.append(part.connect([addresses[rank][number] for rank in ranks], scope))
                undo.callback(planes[-1].close)
            undo.pop_all()
        local, lane, ring = planes
        assert isinstance(local, HostPlane)
        return HierarchicalPlane(self._membership, local, lane if self._has_lane else None, ring)

    def close(self) -> None:
        for part, _ in self._parts:
            part.close()


_PARTS: dict[str, Callable[[Membership, Settings], Part[DataPlane]]] = {
    "local": lambda membership, options: _LocalPart(),
    "shm": ShmPart,
    "ring": partial(NeighbourPart, RingPlane),
    "hierarchical": _HierarchicalPart,
    "zmq": partial(NeighbourPart, ZmqPlane),
}
