"""A part of a group, such as its control link or a data plane, before it is connected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from hvdlite.scope import Scope

T = TypeVar("T")

Address = Any
"""One rank's address of a part, from which the others connect to it: JSON."""


class Part(ABC, Generic[T]):
    """One rank's end of a part, which becomes a ``T`` when it is connected to the ends of the other ranks.

    First every rank calls `bind`; then all addresses are exchanged; then every rank calls `connect`. No rank connects
    to another before the exchange, so if one cannot bind, all ranks can report it alike.
    """

    @abstractmethod
    def bind(self) -> Address:
        """Opens listeners and memory. Raises OSError or HorovodInternalError if the system refuses them."""

    @abstractmethod
    def connect(self, addresses: Sequence[Address], scope: Scope) -> T:
        """Connects with the other ranks, whose ``addresses`` are in rank order.

        Raises HorovodInternalError naming a rank that does not come in time, and ValueError for an invalid address.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes whatever `bind` opened and `connect` did not hand over. May be called twice, and before `bind`."""
