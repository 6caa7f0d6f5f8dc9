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

from hvdlite.core.topology import by_host
from hvdlite.dataplane.base import DataPlane, HostPlane
from hvdlite.dataplane.hierarchical import HierarchicalPlane, Hosts, in_ring_order, lanes_of
from hvdlite.dataplane.local import LocalPlane
from hvdlite.dataplane.ring import RingPlane
from hvdlite.dataplane.segment import SegmentOffer, create, fetch
from hvdlite.dataplane.shm import ShmPlane, geometry
from hvdlite.rendezvous.listening import LOOPBACK
from hvdlite.settings import Settings


class Opening(NamedTuple):
    """What a plane needs to find its peers.

    ``settings`` have the rank and the size in the group, and ``host_ids`` are those of its ranks. ``called`` are the
    numbers by which messages call them. ``key`` is known to the job's ranks only; it and ``session`` belong to this
    plane alone. ``swap`` publishes a string and returns everybody's in rank order; all ranks call it `PLANE_SWAPS`
    times at most, and equally often. ``deadline`` is on the monotonic clock.
    """

    settings: Settings
    host_ids: Sequence[str]
    called: Sequence[int]
    key: bytes
    session: int
    swap: Callable[[str], Sequence[str]]
    deadline: float

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
        )


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
    return ShmPlane(fd, settings.rank, settings.size, shape, opening.called[settings.rank])


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
