"""Connects the ranks of a group: opens their control link and their data plane.

What is opened belongs to one *label*, which no other group of the job ever has: the keys and the number of the session
are derived from it, so that a peer of another group, or a frame of one, is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import zmq

from hvdlite.control.hostlink import LeaderLink, RootHostLink
from hvdlite.control.link import ControlLink, SoloLink
from hvdlite.control.unixlink import UnixLink
from hvdlite.control.zmqleaf import ZmqLeafLink
from hvdlite.control.zmqroot import ZmqRootLink
from hvdlite.net.descriptors import check_descriptors
from hvdlite.net.door import Door
from hvdlite.planes.base import DataPlane
from hvdlite.planes.opening import PLANE_SWAPS, WITH_ARENA, Opening, choose, open_arena, open_plane
from hvdlite.planes.shm.arena import Regions
from hvdlite.rendezvous.job import Job
from hvdlite.settings import Settings

Swap = Callable[[str], Sequence[str]]
"""Publishes a string and returns everybody's in rank order."""

SWAPS = 1 + PLANE_SWAPS  # at most: one for the link


class Connections(NamedTuple):
    """What one rank talks to its group with. ``context`` is that of the link's sockets, where they are ZeroMQ's.

    ``speakers`` has for each rank the one through which its news come to the root.
    """

    link: ControlLink
    plane: DataPlane
    context: zmq.Context[Any] | None
    speakers: Sequence[int]

    def close(self) -> None:
        """Closes all of it."""
        self.link.close()
        self.plane.close()
        if self.context is not None:
            self.context.term()


@dataclass(frozen=True, slots=True)
class Connector:
    """One rank of a group that connects itself to the others.

    ``settings`` have its rank and size in the group; ``host_ids`` are those of the ranks of the group, and ``regions``
    where they have the memory that ranks of a host share.
    """

    job: Job
    settings: Settings
    host_ids: Sequence[str]
    label: str
    regions: Regions | None = None

    def with_arena(self, swap: Swap, deadline: float) -> Connector:
        """The same with the memory of this host. All ranks of the job call it together, before they connect."""
        if choose(self.settings.plane, self.host_ids) not in WITH_ARENA:
            return self
        return replace(self, regions=open_arena(self._opening(swap, deadline)))

    def among(self, members: Sequence[int], opening: int) -> Connector:
        """The same rank's in the group of ``members``, one of which it is; no two groups have the same ``opening``."""
        settings = replace(self.settings, rank=members.index(self.settings.rank), size=len(members))
        host_ids = [self.host_ids[member] for member in members]
        regions = self.regions and self.regions.of(members)
        return Connector(self.job, settings, host_ids, f"{self.label} {opening}", regions)

    def connect(self, swap: Swap, deadline: float) -> Connections:
        """Connects with all others, which call this together. ``deadline`` is on the monotonic clock, in seconds.

        Raises HorovodInternalError if they do not come in time or descriptors are too few, and OSError or ZMQError if
        the system refuses something else.
        """
        if self.settings.size > 1:
            check_descriptors(len(self._host), len(self._hosts))
        context: zmq.Context[Any] | None = zmq.Context() if self._is_leader and not self._is_one_host else None
        try:
            link = self._link(context, swap, deadline)
            with _closing_if_it_fails(link):
                return Connections(link, self._plane(swap, deadline), context, self._speakers)
        except BaseException:
            if context is not None:
                context.destroy(linger=0)
            raise

    @property
    def _is_one_host(self) -> bool:
        return len(set(self.host_ids)) == 1

    @property
    def _hosts(self) -> dict[int, list[int]]:
        """The ranks of each host, by the first of them, which is the host's leader."""
        first = {host_id: self.host_ids.index(host_id) for host_id in self.host_ids}
        return {
            leader: [rank for rank, other in enumerate(self.host_ids) if other == host_id]
            for host_id, leader in first.items()
        }

    @property
    def _host(self) -> list[int]:
        return next(ranks for ranks in self._hosts.values() if self.settings.rank in ranks)

    @property
    def _is_leader(self) -> bool:
        return self._host[0] == self.settings.rank

    @property
    def _speakers(self) -> list[int]:
        """On the root's host each rank speaks for itself, elsewhere the leader for all."""
        leaders = {rank: leader for leader, ranks in self._hosts.items() for rank in ranks}
        return [leaders[rank] or rank for rank in range(self.settings.size)]

    @property
    def _session(self) -> int:
        text = f"{self.job.name} {self.label}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

    def _key(self, purpose: str) -> bytes:
        return self.job.key(f"{purpose} {self.label}")

    def _link(self, context: zmq.Context[Any] | None, swap: Swap, deadline: float) -> ControlLink:
        first, *others = self._host
        if self.settings.size == 1:
            return SoloLink()
        if not self._is_leader:
            door_address = swap("")[first].rpartition(" ")[2]
            return UnixLink.dial(door_address, self._key("control"), self._session, self.settings, deadline, first)
        with Door(self._key("control")) as door:
            if context is None:
                swap(door.address)
                return UnixLink.accept(door, self._session, self.settings, deadline, others)
            across = (ZmqRootLink if first == 0 else ZmqLeafLink)(context, self.job, self._session, self.settings)
            with _closing_if_it_fails(across):
                cards = [card.rpartition(" ")[0] for card in swap(f"{across.card} {door.address}")]
                if isinstance(across, ZmqRootLink):
                    across.accept({rank: cards[rank] for rank in self._hosts if rank > 0}, deadline)
                else:
                    across.join(cards[0], deadline)
                return self._host_link(across, door, others, deadline)

    def _host_link(
        self, across: ZmqRootLink | ZmqLeafLink, door: Door, others: Sequence[int], deadline: float
    ) -> ControlLink:
        """A leader's link: that across hosts, with what its own host needs beside it."""
        if isinstance(across, ZmqLeafLink) and not others:
            return across
        within = UnixLink.accept(door, self._session, self.settings, deadline, others)
        if isinstance(across, ZmqRootLink):
            return RootHostLink(across, within, self._hosts)
        return LeaderLink(across, within, self._host)

    def _plane(self, swap: Swap, deadline: float) -> DataPlane:
        return open_plane(choose(self.settings.plane, self.host_ids), self._opening(swap, deadline))

    def _opening(self, swap: Swap, deadline: float) -> Opening:
        key, ranks = self._key("data plane"), range(self.settings.size)
        return Opening(self.settings, self.host_ids, ranks, key, self._session, swap, deadline, self.regions)


@contextmanager
def _closing_if_it_fails(link: ControlLink) -> Iterator[None]:
    try:
        yield
    except BaseException:
        link.close()
        raise
