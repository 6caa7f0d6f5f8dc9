"""The plane that goes through the memory of the host before it is connected."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hvdlite.members.membership import Membership
from hvdlite.members.part import Address, Part
from hvdlite.planes.base import DataPlane
from hvdlite.planes.staged.plane import StagedPlane
from hvdlite.scope import Scope


class StagedPart(Part[DataPlane]):
    """Has a part of its own for the memory of the host, which ``make`` makes of a membership.

    The ``regret`` that there is no better plane is logged by the first rank once this one is used.
    """

    def __init__(self, membership: Membership, make: Callable[[Membership], Part[DataPlane]], regret: str = "") -> None:
        self._membership = membership
        self._regret = "" if membership.rank else regret
        self._inner = make(membership.among(range(membership.size), "staged"))

    def bind(self) -> Address:
        return self._inner.bind()

    def connect(self, addresses: Sequence[Address], scope: Scope) -> DataPlane:
        return StagedPlane(self._membership, self._inner.connect(addresses, scope), self._regret)

    def close(self) -> None:
        self._inner.close()
