"""Chooses the data plane of a group from where its ranks are, and opens it.

To add a plane: a file with a subclass of `DataPlane`, and a row in `_OPENERS`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from hvdlite.errors import HorovodInternalError
from hvdlite.log import logger
from hvdlite.members.topology import by_host
from hvdlite.net.listening import LOOPBACK
from hvdlite.planes.base import DataPlane, HostPlane
from hvdlite.planes.hierarchical import HierarchicalPlane, Hosts, in_ring_order, lanes_of
from hvdlite.planes.local import LocalPlane
from hvdlite.planes.ring.plane import RingPlane
from hvdlite.planes.shm import arena
from hvdlite.planes.shm.arena import Arena, Regions
from hvdlite.planes.shm.plane import ShmPlane, geometry
from hvdlite.planes.shm.segment import SegmentOffer, create, fetch
from hvdlite.settings import Settings


class Opening(NamedTuple):
    """What a plane needs to find its peers.

    ``settings`` have the rank and the size in the group, and ``host_ids`` are those of its ranks. ``called`` are the
    numbers by which messages call them. ``key`` is known to the job's ranks only; it and ``session`` belong to this
    plane alone. ``swap`` publishes a string and returns everybody's in rank order; all ranks call it `PLANE_SWAPS`
    times at most, and equally often. ``deadline`` is on the monotonic clock. ``regions`` are those of
    the group's ranks, if this rank has the memory of its host mapped.
    """

    settings: Settings
    host_ids: Sequence[str]
    called: Sequence[int]
    key: bytes
    session: int
    swap: Callable[[str], Sequence[str]]
    deadline: float
    regions: Regions | None = None

    def of_part(self, name: str, ranks: Sequence[int]) -> Opening:
        """The opening of a plane of ``ranks``, one of which this is, with a key and a session of its own."""
        label = f"{name} {', '.join(map(str, ranks))}"
        seed = hashlib.blake2b(label.encode(), key=self.key, digest_size=40).digest()
        return self._replace(
            settings=replace(self.settings, rank=ranks.index(self.settings.rank), size=len(ranks)),
            host_ids=[self.host_ids[rank] for rank in ranks],
            called=[self.called[rank] for rank in ranks],
            key=seed[:32],
            session=int.from_bytes(seed[32:], "little"),
            swap=lambda card: [cards[rank] for cards in [self.swap(card)] for rank in ranks],
            regions=self.regions and self.regions.of(ranks),
        )


WITH_ARENA = ("shm", "hierarchical")
PLANE_SWAPS = 3  # at most: the parts of a hierarchical plane have one each


def choose(setting: str, host_ids: Sequence[str]) -> str:
    """The name of the plane for ranks on these hosts. Raises ValueError when ``setting`` asks for an impossible one."""
    ranks, hosts = len(host_ids), len(set(host_ids))
    if setting == "shm" and hosts > 1:
        raise ValueError(f"HVDLITE_PLANE=shm needs all ranks on one host, but there are {hosts}; use auto or ring")
    if setting == "local" and ranks > 1:
        raise ValueError(f"HVDLITE_PLANE=local is for one rank, but there are {ranks}; use auto")
    if ranks == 1:
        return "local"
    if setting in ("auto", "hierarchical"):
        return "shm" if hosts == 1 else "ring" if hosts == ranks else "hierarchical"
    return setting


def open_plane(name: str, opening: Opening) -> DataPlane:
    """Opens the plane ``name`` with all ranks of the group, which call this together."""
    return _OPENERS[name](opening)


def _open_local(opening: Opening) -> DataPlane:
    return LocalPlane()


def open_arena(opening: Opening) -> Regions | None:
    """The memory that the ranks of each host share, which all ranks of the job open together with one swap.

    None where there is nobody to share it with, or the system does not give so much address space.
    """
    hosts = by_host(opening.host_ids)
    own = hosts[opening.host_ids[opening.settings.rank]]
    if len(own) < 2:
        if len(hosts) < len(opening.host_ids):
            opening.swap("")  # as often as the other ranks
        return None
    part = opening.of_part("arena", own)
    fd = _share(part, lambda: arena.create(len(own)))
    numbers = [hosts[host_id].index(rank) for rank, host_id in enumerate(opening.host_ids)]
    try:
        return None if fd is None else Regions(Arena(fd, part.settings.rank, len(own)), numbers)
    except HorovodInternalError as error:
        logger.info("shared arrays will be ordinary ones: %s", error)
        return None


def _open_shm(opening: Opening) -> DataPlane:
    settings = opening.settings
    shape = geometry(settings, cores=len(os.sched_getaffinity(0)))
    fd = _share(opening, lambda: create(shape.nbytes))
    assert fd is not None
    return ShmPlane(fd, settings.rank, settings.size, shape, opening.called[settings.rank], opening.regions)


def _share(opening: Opening, make: Callable[[], int | None]) -> int | None:
    """The descriptor that ``make`` returns on the first rank, on all ranks."""
    if opening.settings.rank > 0:
        address = opening.swap("")[0]
        return fetch(address, opening.key, opening.deadline) if address else None
    fd = make()
    if fd is None:
        opening.swap("")
        return None
    try:
        with SegmentOffer(fd, opening.key) as offer:
            opening.swap(offer.address)
            offer.serve(opening.settings.size - 1, opening.deadline)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_ring(opening: Opening) -> DataPlane:
    settings = opening.settings
    is_one_host = len(set(opening.host_ids)) == 1
    plane = RingPlane(
        settings.rank,
        settings.size,
        opening.key,
        opening.session,
        chunk_bytes=settings.ring_chunk,
        window=settings.ring_window,
        connections=1 if is_one_host else settings.ring_connections,
        spin_us=max(settings.spin, 0),
        progress_timeout_s=settings.progress_timeout,
        unreachable_s=2 * settings.peer_timeout,
        address=None if is_one_host else settings.address or LOOPBACK,
        ports=settings.ports,
        encrypt=settings.encrypt_data and not is_one_host,
        called=opening.called,
    )
    try:
        addresses = opening.swap(plane.address)
        plane.connect(addresses[(settings.rank + 1) % settings.size], opening.deadline)
    except BaseException:
        plane.close()
        raise
    return plane


def _open_hierarchical(opening: Opening) -> DataPlane:
    rank, hosts = opening.settings.rank, list(by_host(opening.host_ids).values())
    with ExitStack() as undo:
        local = _open_part(opening, "shm", hosts, undo) or LocalPlane()
        lane = _open_part(opening, "ring", lanes_of(hosts), undo)
        ring = _open_part(opening, "ring", [in_ring_order(hosts)], undo)
        assert isinstance(local, HostPlane)
        assert ring is not None  # there are several hosts
        undo.pop_all()
    return HierarchicalPlane(rank, hosts, local, lane, ring)


def _open_part(opening: Opening, name: str, groups: Hosts, undo: ExitStack) -> DataPlane | None:
    """The plane ``name`` of the one of ``groups`` that this rank is in, if it is not alone there."""
    ranks = next((ranks for ranks in groups if opening.settings.rank in ranks), ())
    if len(ranks) < 2:
        opening.swap("")  # as often as the other ranks
        return None
    plane = open_plane(name, opening.of_part(name, ranks))
    undo.callback(plane.close)
    return plane


_OPENERS: dict[str, Callable[[Opening], DataPlane]] = {
    "local": _open_local,
    "shm": _open_shm,
    "ring": _open_ring,
    "hierarchical": _open_hierarchical,
}
