"""Chooses the data plane of a group from where its ranks are, and opens it.

To add a plane: a file with a subclass of `DataPlane`, and a row in `_OPENERS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hvdlite.dataplane.base import DataPlane
from hvdlite.dataplane.local import LocalPlane
from hvdlite.dataplane.ring import RingPlane
from hvdlite.dataplane.segment import SegmentOffer, create, fetch
from hvdlite.dataplane.shm import ShmPlane, geometry
from hvdlite.settings import Settings, parse_ports


class Opening(NamedTuple):
    """What a plane needs to find its peers.

    ``key`` is known to the job's ranks only. ``swap`` publishes a string and returns everybody's in rank order; all
    ranks call it equally often. ``deadline`` is on the monotonic clock.
    """

    settings: Settings
    key: bytes
    session: int
    is_one_host: bool
    swap: Callable[[str], Sequence[str]]
    deadline: float


def choose(setting: str, host_ids: Sequence[str]) -> str:
    """The name of the plane for ranks on these hosts. Raises ValueError when ``setting`` asks for an impossible one."""
    hosts = len(set(host_ids))
    if setting == "auto":
        return "local" if len(host_ids) == 1 else "shm" if hosts == 1 else "ring"
    if setting == "shm" and hosts > 1:
        raise ValueError(f"HVDLITE_PLANE=shm needs all ranks on one host, but there are {hosts}; use auto or ring")
    if setting == "local" and len(host_ids) > 1:
        raise ValueError(f"HVDLITE_PLANE=local is for one rank, but there are {len(host_ids)}; use auto")
    return "local" if len(host_ids) == 1 else setting


def open_plane(name: str, opening: Opening) -> DataPlane:
    """Opens the plane ``name`` with all ranks of the group, which call this together."""
    return _OPENERS[name](opening)


def _open_local(opening: Opening) -> DataPlane:
    return LocalPlane()


def _open_shm(opening: Opening) -> DataPlane:
    settings = opening.settings
    shape = geometry(settings, cores=len(os.sched_getaffinity(0)))
    if settings.rank == 0:
        fd = create(shape.nbytes)
        with SegmentOffer(fd, opening.key) as offer:
            opening.swap(offer.address)
            offer.serve(settings.size - 1, opening.deadline)
    else:
        fd = fetch(opening.swap("")[0], opening.key, opening.deadline)
    return ShmPlane(fd, settings.rank, settings.size, shape)


def _open_ring(opening: Opening) -> DataPlane:
    settings = opening.settings
    plane = RingPlane(
        settings.rank,
        settings.size,
        opening.key,
        opening.session,
        chunk_bytes=settings.ring_chunk,
        window=settings.ring_window,
        progress_timeout_s=settings.progress_timeout,
        address=None if opening.is_one_host else settings.address or "127.0.0.1",
        ports=parse_ports(settings.port_range),
        encrypt=settings.encrypt_data and not opening.is_one_host,
    )
    try:
        addresses = opening.swap(plane.address)
        plane.connect(addresses[(settings.rank + 1) % settings.size], opening.deadline)
    except BaseException:
        plane.close()
        raise
    return plane


_OPENERS: dict[str, Callable[[Opening], DataPlane]] = {"local": _open_local, "shm": _open_shm, "ring": _open_ring}
