"""The plane of CUDA devices before it is connected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hvdlite.errors import HorovodInternalError
from hvdlite.members.membership import Membership
from hvdlite.members.part import Address, Part
from hvdlite.planes.base import DataPlane
from hvdlite.planes.nccl.library import apparent_absence
from hvdlite.planes.nccl.plane import NcclPlane
from hvdlite.scope import Scope
from hvdlite.settings import Settings

_LONGEST: Final = 400  # characters of an address


class NcclPart(Part[DataPlane]):
    """Publishes why this rank cannot load NCCL; nothing if it seems to have it. Nothing is loaded before it is used."""

    def __init__(self, membership: Membership, options: Settings) -> None:
        self._membership = membership
        self._options = options

    def bind(self) -> Address:
        return apparent_absence()[:_LONGEST]

    def connect(self, addresses: Sequence[Address], scope: Scope) -> DataPlane:
        members = self._membership
        if not all(isinstance(address, str) and len(address) <= _LONGEST for address in addresses):
            raise HorovodInternalError("a rank published no valid address of NCCL; is its hvdlite the same as here?")
        lacking = [f"on rank {rank} {why}" for rank, why in zip(members.ranks, addresses, strict=True) if why]
        lack = f"tensors on GPUs need NCCL on all ranks, but {lacking[0]}" if lacking else ""
        return NcclPlane(members, self._options, lack)

    def close(self) -> None:
        pass
