"""A ring before it is connected."""

from __future__ import annotations

from hvdlite import native
from hvdlite.members.membership import Membership
from hvdlite.net.listening import LOOPBACK
from hvdlite.planes.neighbours import NeighbourPart
from hvdlite.planes.ring.plane import RingPlane
from hvdlite.settings import Settings


class RingPart(NeighbourPart):
    """Over Unix sockets if all members are on one host, else over TCP."""

    def _open(self, members: Membership, options: Settings) -> RingPlane:
        if options.keep_freed:
            # A block is allocated for each frame that comes; many of their pages would be new again in each batch.
            native.library().hvd_keep_freed(4 * options.ring_window * options.ring_chunk)
        return RingPlane(
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
            labels=members.ranks,
        )
