"""A ring before it is connected."""

from __future__ import annotations

from collections.abc import Sequence

from hvdlite.members.membership import Membership
from hvdlite.members.part import Address, Part
from hvdlite.net.listening import LOOPBACK
from hvdlite.planes.base import DataPlane
from hvdlite.planes.ring.plane import RingPlane
from hvdlite.settings import Settings


class RingPart(Part[DataPlane]):
    """A ring in the order of the members: over Unix sockets if all of them are on one host, else over TCP."""

    def __init__(self, membership: Membership, options: Settings) -> None:
        self._membership = membership
        self._options = options
        self._plane: RingPlane | None = None

    def bind(self) -> Address:
        members, options = self._membership, self._options
        self._plane = RingPlane(
            members.rank,
            members.size,
            members.key_for("ring"),
            members.session,
            chunk_bytes=options.ring_chunk,
            window=options.ring_window,
            connections=1 if members.is_one_host else options.ring_connections,
            spin_us=max(options.spin, 0),
            progress_timeout_s=options.progress_timeout,
            unreachable_s=2 * options.peer_timeout,
            address=None if members.is_one_host else options.address or LOOPBACK,
            ports=options.ports,
            encrypt=options.encrypt_data and not members.is_one_host,
            called=members.ranks,
        )
        return self._plane.address

    def connect(self, addresses: Sequence[Address], deadline: float) -> DataPlane:
        plane, members = self._plane, self._membership
        assert plane is not None  # `bind` came first
        plane.connect(addresses[(members.rank + 1) % members.size], deadline)
        self._plane = None
        return plane

    def close(self) -> None:
        if self._plane is not None:
            self._plane.close()
