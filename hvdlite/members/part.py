"""A part of a group, such as its control link or a data plane, before it is connected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Address = Any
"""What one rank tells the others of a part so that they can connect: JSON."""


class Part(ABC, Generic[T]):
    """One rank's end of a part that becomes a ``T`` when it is connected to those of the other ranks.

    First every rank calls `bind`; then all addresses are exchanged; then every rank calls `connect`. No rank talks to
    another before that, so it can be said on all ranks alike that one cannot bind.
    """

    @abstractmethod
    def bind(self) -> Address:
        """Opens listeners and memory. Raises OSError or HorovodInternalError if the system refuses them."""

    @abstractmethod
    def connect(self, addresses: Sequence[Address], deadline: float) -> T:
        """Connects with the other ranks, whose ``addresses`` are in rank order, until ``deadline`` (monotonic).

        Raises HorovodInternalError naming a rank that does not come in time, and ValueError for what is no address.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives up what `bind` opened and `connect` did not hand over. May be called twice, and before `bind`."""
