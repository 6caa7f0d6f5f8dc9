"""A ring over ZeroMQ before it is connected."""

from __future__ import annotations

from collections.abc import Sequence

from hvdlite.members.membership import Membership
from hvdlite.members.part import Address, Part
from hvdlite.net.listening import LOOPBACK
from hvdlite.planes.base import DataPlane
from hvdlite.planes.zmq.plane import ZmqPlane
from hvdlite.settings import Settings


class ZmqPart(Part[DataPlane]):
    """A ring in the order of the members."""

    def __init__(self, membership: Membership, options: Settings) -> None:
        self._membership = membership
        self._options = options
        self._plane: ZmqPlane | None = None

    def bind(self) -> Address:
        members, options = self._membership, self._options
        self._plane = ZmqPlane(
            members.rank,
            members.size,
            members.key_for("zmq"),
            progress_timeout_s=options.progress_timeout,
            address=LOOPBACK if members.is_one_host else options.address or LOOPBACK,
            ports=options.ports,
            called=members.ranks,
            hosts=[host.name for host in members.hosts],
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
