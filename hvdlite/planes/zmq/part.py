"""A ring over ZeroMQ before it is connected."""

from __future__ import annotations

from hvdlite.members.membership import Membership
from hvdlite.net.listening import LOOPBACK
from hvdlite.planes.neighbours import NeighbourPart
from hvdlite.planes.zmq.plane import ZmqPlane
from hvdlite.settings import Settings


class ZmqPart(NeighbourPart):
    """The part of a `ZmqPlane`, which uses TCP within a host too."""

    def _open(self, members: Membership, options: Settings) -> ZmqPlane:
        return ZmqPlane(
            members.rank,
            members.size,
            members.key_for("zmq"),
            progress_timeout_s=options.progress_timeout,
            address=LOOPBACK if members.is_one_host else options.address or LOOPBACK,
            ports=options.ports,
            labels=members.ranks,
            hosts=[host.name for host in members.hosts],
        )
