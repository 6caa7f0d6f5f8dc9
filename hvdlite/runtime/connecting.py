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

from hvdlite.dataplane.base import DataPlane
from hvdlite.dataplane.opening import PLANE_SWAPS, Opening, choose, open_plane
from hvdlite.rendezvous.door import Door
from hvdlite.rendezvous.job import Job
from hvdlite.runtime.control import ControlLink, SoloLink
from hvdlite.runtime.unixlink import UnixLink
from hvdlite.runtime.zmqleaf import ZmqLeafLink
from hvdlite.runtime.zmqroot import ZmqRootLink
from hvdlite.settings import Settings

Swap = Callable[[str], Sequence[str]]
"""Publishes a string and returns everybody's in rank order."""

SWAPS = 1 + PLANE_SWAPS  # at most: one for the link


class Connections(NamedTuple):
    """What one rank talks to its group with. ``context`` is that of the link's sockets, where they are ZeroMQ's."""

    link: ControlLink
    plane: DataPlane
    context: zmq.Context[Any] | None

    def close(self) -> None:
        """Closes all of it."""
        self.link.close()
        self.plane.close()
        if self.context is not None:
            self.context.term()


@dataclass(frozen=True, slots=True)
class Connector:
    """One rank of a group that connects itself to the others.

    ``settings`` have its rank and size in the group; ``host_ids`` are those of the ranks of the group.
    """

    job: Job
    settings: Settings
    host_ids: Sequence[str]
    label: str

    def among(self, members: Sequence[int], opening: int) -> Connector:
        """The same rank's in the group of ``members``, one of which it is; no two groups have the same ``opening``."""
        settings = replace(self.settings, rank=members.index(self.settings.rank), size=len(members))
        host_ids = [self.host_ids[member] for member in members]
        return Connector(self.job, settings, host_ids, f"{self.label} {opening}")

    def connect(self, swap: Swap, deadline: float) -> Connections:
        """Connects with all others, which call this together. ``deadline`` is on the monotonic clock, in seconds.

        Raises HorovodInternalError if they do not come in time, and OSError or ZMQError if the system refuses.
        """
        context: zmq.Context[Any] | None = None if self._is_one_host else zmq.Context()
        try:
            link = self._unix_link(swap, deadline) if context is None else self._zmq_link(context, swap, deadline)
            with _closing_if_it_fails(link):
                return Connections(link, self._plane(swap, deadline), context)
        except BaseException:
            if context is not None:
                context.destroy(linger=0)
            raise

    @property
    def _is_one_host(self) -> bool:
        return len(set(self.host_ids)) == 1

    @property
    def _session(self) -> int:
        text = f"{self.job.name} {self.label}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

    def _key(self, purpose: str) -> bytes:
        return self.job.key(f"{purpose} {self.label}")

    def _zmq_link(self, context: zmq.Context[Any], swap: Swap, deadline: float) -> ControlLink:
        if self.settings.rank == 0:
            root = ZmqRootLink(context, self.job, self._session, self.settings)
            with _closing_if_it_fails(root):
                root.accept(swap(root.card), deadline)
            return root
        leaf = ZmqLeafLink(context, self.job, self._session, self.settings)
        with _closing_if_it_fails(leaf):
            leaf.join(swap(leaf.card)[0], deadline)
        return leaf

    def _unix_link(self, swap: Swap, deadline: float) -> ControlLink:
        if self.settings.size == 1:
            return SoloLink()
        token = self._key("control")
        if self.settings.rank > 0:
            return UnixLink.dial(swap("")[0], token, self._session, self.settings, deadline)
        with Door(token) as door:
            swap(door.address)
            return UnixLink.accept(door, self._session, self.settings, deadline)

    def _plane(self, swap: Swap, deadline: float) -> DataPlane:
        key, ranks = self._key("data plane"), range(self.settings.size)
        opening = Opening(self.settings, self.host_ids, ranks, key, self._session, swap, deadline)
        return open_plane(choose(self.settings.plane, self.host_ids), opening)


@contextmanager
def _closing_if_it_fails(link: ControlLink) -> Iterator[None]:
    try:
        yield
    except BaseException:
        link.close()
        raise
