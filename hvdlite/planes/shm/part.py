"""Shared memory of a host before it is shared: the slots of a plane, and the arena."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from hvdlite.errors import HorovodInternalError
from hvdlite.log import logger
from hvdlite.members.membership import Membership
from hvdlite.members.part import Address, Part
from hvdlite.memory.arena import Arena, Regions, create_arena
from hvdlite.memory.segment import SegmentOffer, create, fetch
from hvdlite.planes.base import DataPlane
from hvdlite.planes.shm.plane import ShmPlane, geometry
from hvdlite.scope import Scope
from hvdlite.settings import Settings

T = TypeVar("T")


class _SharedMemory(Part[T]):
    """A part made of memory that the members, all of one host, share.

    The first rank gets its descriptor from ``make``. If that returns None, no rank has any.
    """

    def __init__(self, membership: Membership, make: Callable[[], int | None]) -> None:
        self._membership = membership
        self._key = membership.key_for("memory")
        self._make = make
        self._undo = ExitStack()
        self._offer: SegmentOffer | None = None
        self._fd: int | None = None

    def bind(self) -> Address:
        if self._membership.rank > 0 or (fd := self._make()) is None:
            return ""
        self._undo.callback(os.close, fd)
        self._fd = fd
        self._offer = self._undo.enter_context(SegmentOffer(fd, self._key))
        return self._offer.address

    def close(self) -> None:
        self._undo.close()

    def _shared(self, addresses: Sequence[Address], scope: Scope) -> int | None:
        """Returns this rank's descriptor of the memory, which the caller closes."""
        if self._membership.rank > 0:
            return fetch(addresses[0], self._key, scope) if addresses[0] else None
        if self._offer is not None:
            self._offer.serve(self._membership.size - 1, scope)
            self._offer.close()
        self._undo.pop_all()
        return self._fd


class ShmPart(_SharedMemory[DataPlane]):
    """The plane of one host. Raises ValueError for invalid options."""

    def __init__(self, membership: Membership, options: Settings) -> None:
        nbytes = geometry(options, membership.size).nbytes
        super().__init__(membership, lambda: create(nbytes))
        self._options = options

    def connect(self, addresses: Sequence[Address], scope: Scope) -> DataPlane:
        fd = self._shared(addresses, scope)
        assert fd is not None  # `create` raises if there is none
        return ShmPlane(self._membership, self._options, fd)


class ArenaPart(_SharedMemory[Regions | None]):
    """Memory of each rank that all ranks of its host have mapped. All members of all hosts have this part.

    It becomes None if this rank is alone on its host, or the system does not provide enough address space.
    """

    def __init__(self, membership: Membership) -> None:
        self._hosts = membership.by_leader.values()
        self._all = membership.size
        self._own = own = membership.on_this_host
        super().__init__(membership.among(own, "arena"), lambda: create_arena(len(own)) if len(own) > 1 else None)

    def connect(self, addresses: Sequence[Address], scope: Scope) -> Regions | None:
        fd = self._shared([addresses[rank] for rank in self._own], scope)
        if fd is None:
            return None
        numbers = {rank: number for ranks in self._hosts for number, rank in enumerate(ranks)}
        try:
            arena = Arena(fd, self._membership.rank, self._membership.size)
        except HorovodInternalError as error:
            logger.info("shared arrays will be ordinary arrays: %s", error)
            return None
        return Regions(arena, [numbers[rank] for rank in range(self._all)])
