"""Rings: planes in which each rank connects to its right neighbour."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from hvdlite.members.membership import Membership
from hvdlite.members.part import Address, Part
from hvdlite.planes.base import DataPlane
from hvdlite.scope import Scope
from hvdlite.settings import Settings


class NeighbourPlane(DataPlane):
    """A plane whose ranks talk only to their neighbours. The left neighbour connects to ``address``."""

    address: str

    @abstractmethod
    def connect(self, right_address: str, scope: Scope) -> None:
        """Connects to the right neighbour and waits for the left one.

        Raises HorovodInternalError if either is not connected in time, and ValueError for an invalid address.
        """


class NeighbourPart(Part[DataPlane]):
    """A ring in the order of the members. ``make`` makes the plane of this rank, which listens at once."""

    def __init__(
        self, make: Callable[[Membership, Settings], NeighbourPlane], membership: Membership, options: Settings
    ) -> None:
        self._make = make
        self._membership = membership
        self._options = options
        self._plane: NeighbourPlane | None = None

    def bind(self) -> Address:
        self._plane = self._make(self._membership, self._options)
        return self._plane.address

    def connect(self, addresses: Sequence[Address], scope: Scope) -> DataPlane:
        plane, members = self._plane, self._membership
        assert plane is not None  # set by `bind`
        plane.connect(addresses[(members.rank + 1) % members.size], scope)
        self._plane = None
        return plane

    def close(self) -> None:
        if self._plane is not None:
            self._plane.close()
