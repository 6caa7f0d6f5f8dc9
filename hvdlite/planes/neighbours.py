"""Rings: planes in which each rank connects to its right neighbour, and how they are connected."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from hvdlite.members.membership import Membership
from hvdlite.members.part import Address, Part
from hvdlite.planes.base import DataPlane
from hvdlite.settings import Settings


class NeighbourPlane(DataPlane):
    """A plane whose ranks talk to their neighbours only; ``address`` is what the left one connects to."""

    address: str

    @abstractmethod
    def connect(self, right_address: str, deadline: float) -> None:
        """Connects to the right neighbour and waits for the left one until ``deadline``, on the monotonic clock.

        Raises HorovodInternalError if one of them does not come in time, and ValueError for what is no address.
        """


class NeighbourPart(Part[DataPlane]):
    """A ring in the order of the members. A subclass opens the plane."""

    def __init__(self, membership: Membership, options: Settings) -> None:
        self._membership = membership
        self._options = options
        self._plane: NeighbourPlane | None = None

    @abstractmethod
    def _open(self, members: Membership, options: Settings) -> NeighbourPlane:
        """The plane of this rank, which listens and is not connected yet."""

    def bind(self) -> Address:
        self._plane = self._open(self._membership, self._options)
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
