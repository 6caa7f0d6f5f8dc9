"""The plane of CUDA devices before it is connected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hvdlite.cuda import driver
from hvdlite.errors import HorovodInternalError, absence_of
from hvdlite.members.membership import Membership
from hvdlite.members.part import Address, Part
from hvdlite.planes.base import DataPlane
from hvdlite.planes.nccl import library
from hvdlite.planes.nccl.communicator import unique_id
from hvdlite.planes.nccl.plane import NcclPlane
from hvdlite.settings import Settings

_ID_BYTES: Final = 128


class NcclPart(Part[DataPlane]):
    """Publishes the unique id of the first rank. Ranks connect with their first collective."""

    def __init__(self, membership: Membership, options: Settings) -> None:
        self._membership = membership
        self._options = options

    def bind(self) -> Address:
        return unique_id().hex() if self._membership.rank == 0 else ""

    def connect(self, addresses: Sequence[Address], deadline: float) -> DataPlane:
        members = self._membership
        return NcclPlane(
            members.rank,
            members.size,
            _parsed(addresses[0]),
            local_rank=members.on_this_host.index(members.rank),
            label=members.number,
            progress_timeout_s=self._options.progress_timeout,
            grace_s=self._options.peer_timeout,
        )

    def close(self) -> None:
        pass


def nccl_part(membership: Membership, options: Settings) -> NcclPart | None:
    """Makes the part of this rank; None if it has no GPU, or no NCCL."""
    return None if absence_of(driver.library) or absence_of(library.library) else NcclPart(membership, options)


def _parsed(address: Address) -> bytes:
    """The unique id in the address of the first rank."""
    try:
        found = bytes.fromhex(address)
    except (TypeError, ValueError):
        found = b""
    if len(found) != _ID_BYTES:
        raise HorovodInternalError("the first rank published no id of NCCL; is its hvdlite the same as here?")
    return found
