"""The control link of a group before it is connected."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from hvdlite.control.hostlink import LeaderLink, RootHostLink
from hvdlite.control.link import ControlLink, SoloLink
from hvdlite.control.page import MAX_RANKS, PageOffer
from hvdlite.control.unixlink import UnixLink
from hvdlite.control.zmqleaf import ZmqLeafLink
from hvdlite.control.zmqroot import ZmqRootLink
from hvdlite.members.membership import Membership
from hvdlite.members.part import Address, Part
from hvdlite.net.local_listener import LocalListener
from hvdlite.scope import Scope
from hvdlite.settings import Settings


class ControlPart(Part[ControlLink]):
    """Within a host the leader listens for the others. Across hosts the root listens for the other leaders.

    An address is a pair: the address of the link across hosts, and the listener's.
    """

    def __init__(self, membership: Membership, options: Settings) -> None:
        self._membership = membership
        self._options = options
        self._undo = ExitStack()
        self._listener: LocalListener | None = None
        self._offer: PageOffer | None = None
        self._across: ZmqRootLink | ZmqLeafLink | None = None

    def bind(self) -> Address:
        members = self._membership
        leader, *others = members.on_this_host
        if members.rank != leader:
            return ["", ""]
        if _has_page(members, self._options):
            self._offer = PageOffer(len(members.on_this_host), self._options.cache_capacity)
            self._undo.callback(self._offer.close)
        if others:
            self._listener = self._undo.enter_context(LocalListener(members.key_for("listener")))
        if not members.is_one_host:
            self._across = (ZmqRootLink if leader == 0 else ZmqLeafLink)(members, self._options)
            self._undo.callback(self._across.close)
        return [self._across.address if self._across else "", self._listener.address if self._listener else ""]

    def connect(self, addresses: Sequence[Address], scope: Scope) -> ControlLink:
        members, across = self._membership, self._across
        leader = members.on_this_host[0]
        if members.size == 1:
            return SoloLink(self._offer)
        within = UnixLink(members, self._options)
        self._undo.callback(within.close)
        if members.rank != leader:
            within.dial(addresses[leader][1], scope)
            within.fetch(scope)
            self._undo.pop_all()
            return within
        if isinstance(across, ZmqRootLink):
            across.accept({rank: addresses[rank][0] for rank in members.by_leader if rank > 0}, scope)
        elif across is not None:
            across.join(addresses[0][0], scope)
        if self._listener is not None:
            within.accept(self._listener, scope)
            within.give(self._offer)
            self._listener.close()
        self._undo.pop_all()
        if across is None:
            return within
        if isinstance(across, ZmqRootLink):  # even if it is alone on its host: other leaders send for several ranks
            return RootHostLink(across, within, members.by_leader)
        if self._listener is None:
            within.close()
            return across
        return LeaderLink(across, within, members.number)

    def close(self) -> None:
        self._undo.close()


def _has_page(members: Membership, options: Settings) -> bool:
    here = members.on_this_host
    if len(here) > MAX_RANKS or not all(members.hosts[rank].has_native for rank in here):
        return False
    if members.is_one_host and options.cycle_time > 0:  # the root holds tensors back
        return False
    return options.page and options.cache_capacity > 0 and (len(here) > 1 or members.size == 1)
