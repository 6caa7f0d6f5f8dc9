"""Connects the ranks of a group: bind, exchange, connect, commit.

Every rank opens its listeners, and a first exchange publishes their addresses. Then the ranks connect, and a second
exchange publishes the outcome: either all ranks have the group, or all raise an error. A rank that cannot bind
publishes its error in place of its addresses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import zmq

from hvdlite.control.link import ControlLink
from hvdlite.control.part import ControlPart
from hvdlite.errors import HorovodInternalError, HvdError
from hvdlite.groups.choose import BY_DEVICE, parts_by_device
from hvdlite.host.descriptors import check_descriptors
from hvdlite.members.membership import Membership
from hvdlite.memory.arena import Regions
from hvdlite.planes.base import Planes
from hvdlite.planes.shm.part import ArenaPart
from hvdlite.scope import Cancelled, Scope
from hvdlite.settings import Settings
from hvdlite.tensors.device import CPU

Exchange = Callable[[Any], Sequence[Any]]
"""Publishes a value (JSON) and returns the values of all members, in rank order.

An exchange may have a method ``leave(reason)``. A rank that cannot connect calls it, so that the other ranks do not
wait for it. ``leave`` returns the reason of the first rank that called it.
"""

Memory = ArenaPart | Regions | None
"""The memory that ranks of a host share: a part to make it, or the members' regions in the memory of a larger group."""

_MAX_NAMED: Final = 3  # failed ranks in one error message
_FAILURES: Final = (HvdError, OSError, ValueError, zmq.ZMQError)


class NotConnected(HorovodInternalError):
    """The ranks of a group could not be connected. Raised on all of them."""


class Connections(NamedTuple):
    """The link and the planes of one rank of a group.

    ``planes`` has a plane for each kind of device that all members have. ``regions`` are the members' regions in the
    arena of this host, or None.
    """

    link: ControlLink
    planes: Planes
    regions: Regions | None

    def close(self) -> None:
        """Closes the link and the planes."""
        self.link.close()
        self.planes.close()


class Connecting:
    """One rank of a group that is not connected yet.

    ``ranks`` are the members' numbers in the job. Raises ValueError for options that the members cannot use.
    """

    def __init__(self, membership: Membership, options: Settings, memory: Memory = None) -> None:
        self.ranks = membership.ranks
        self._membership = membership
        self._regions = memory if isinstance(memory, Regions) else None
        self._arena = memory if isinstance(memory, ArenaPart) else None
        self._control = ControlPart(membership, options)
        self._planes = parts_by_device(membership, options)

    def bind(self) -> list[Any]:
        """Opens listeners and shared memory, and returns their addresses (JSON).

        Raises OSError, ZMQError or HorovodInternalError.
        """
        if self._membership.size > 1:
            check_descriptors(len(self._membership.on_this_host), len(self._membership.by_leader))
        by_kind = {kind: part.bind() for kind, part in self._planes.items()}
        return [self._arena and self._arena.bind(), self._control.bind(), by_kind]

    def connect(self, addresses: Sequence[Sequence[Any]], scope: Scope) -> Connections:
        """Connects with all other members, which call it too. ``addresses`` has the result of each member's `bind`.

        Raises HorovodInternalError if the ranks do not connect in time, and Cancelled if ``scope`` is.
        """
        of_arena, of_control, of_planes = zip(*addresses, strict=True)
        with ExitStack() as undo:
            regions = self._arena.connect(of_arena, scope) if self._arena else self._regions
            link = self._control.connect(of_control, scope)
            undo.callback(link.close)
            planes = Planes()
            undo.callback(planes.close)
            kinds = {*BY_DEVICE, *itertools.chain(*of_planes)}
            for kind in sorted(kinds):  # the same order on all ranks, because each waits for the others
                if lacking := [rank for rank, bound in zip(self.ranks, of_planes, strict=True) if kind not in bound]:
                    planes.lacking[kind] = lacking
                else:
                    planes[kind] = self._planes[kind].connect([bound[kind] for bound in of_planes], scope)
            for kind in planes.keys() - {CPU.kind}:
                planes.of_device(kind).attach_host_plane(planes[CPU.kind])
            if regions is not None:
                planes[CPU.kind].attach_arena(regions)
                if link.page is not None and self._membership.is_one_host:
                    link.page.attach_arena(regions)
            undo.pop_all()
        return Connections(link, planes, regions)

    def close(self) -> None:
        """Closes everything that `bind` opened and `connect` did not pass on."""
        for part in (*self._planes.values(), self._control, self._arena):
            if part is not None:
                part.close()


def connect(connecting: Connecting, exchange: Exchange, scope: Scope) -> Connections:
    """Connects one rank of a group. All members call it together; either all connect or all raise.

    The NotConnected is the same on all ranks: it names the ranks that failed, and why. If ``scope`` is cancelled, this
    rank is one of them.
    """
    cause: BaseException | None = None
    connections: Connections | None = None
    leave: Callable[[str], str] | None = getattr(exchange, "leave", None)
    with ExitStack() as undo:
        undo.callback(connecting.close)
        try:
            offer: dict[str, Any] = {"addresses": connecting.bind()}
            if scope.cancelled:
                offer = {"failure": scope.cancelled}
        except _FAILURES as error:
            cause, offer = error, {"failure": str(error)}
        offers = _raise_failures(exchange(offer), connecting.ranks, cause)
        try:
            connections = connecting.connect(_addresses(offers, connecting.ranks), scope)
            undo.callback(connections.close)
            failure = scope.cancelled
        except (*_FAILURES, Cancelled) as error:
            cause, failure = error, str(error)
        except BaseException as error:
            if leave is not None:
                leave(f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error))
            raise
        if cause is not None and leave is not None:  # before closing links, which other ranks would take for the cause
            reason = leave(failure)
            if isinstance(cause, Cancelled):
                raise cause
            raise NotConnected(reason) from cause
        _raise_failures(exchange({"failure": failure}), connecting.ranks, cause)
        assert connections is not None
        undo.pop_all()
        connecting.close()
    return connections


def look_on(ranks: Sequence[int], exchange: Exchange) -> None:
    """Takes part in the exchanges of `connect` for a rank outside ``ranks``. Raises as the members do."""
    _raise_failures(exchange(None), ranks)
    _raise_failures(exchange(None), ranks)


def _addresses(offers: Sequence[Any], ranks: Sequence[int]) -> list[Sequence[Any]]:
    """Returns each member's result of `bind`. Raises HorovodInternalError if an offer has another form."""
    for rank, offer in zip(ranks, offers, strict=True):
        match offer:
            case {"addresses": [None | str(), [str(), str()], dict()]}:
                pass
            case _:
                raise HorovodInternalError(f"rank {rank} published no addresses; install the same hvdlite on all ranks")
    return [offer["addresses"] for offer in offers]


def _raise_failures(offers: Sequence[Any], ranks: Sequence[int], cause: BaseException | None = None) -> Sequence[Any]:
    if len(offers) != len(ranks):
        raise HorovodInternalError(
            f"the exchange returned {len(offers)} values for {len(ranks)} ranks; it must return one of each, in order"
        )
    failures = [
        f"rank {rank}: {offer['failure']}"
        for rank, offer in zip(ranks, offers, strict=True)
        if isinstance(offer, dict) and offer.get("failure")
    ]
    if failures:
        more = [f"and {len(failures) - _MAX_NAMED} more"] if len(failures) > _MAX_NAMED else []
        raise NotConnected("; ".join(failures[:_MAX_NAMED] + more)) from cause
    return offers
