"""Chooses the decider of a rank."""

from __future__ import annotations

from hvdlite.control.link import ControlLink
from hvdlite.control.page import Page
from hvdlite.engine.deciders.base import Decider
from hvdlite.engine.deciders.host_page import LeaderPageDecider, MemberPageDecider
from hvdlite.engine.deciders.page import PageDecider
from hvdlite.engine.deciders.remote import LeaderDecider, RemoteDecider
from hvdlite.engine.deciders.root import RootDecider
from hvdlite.engine.observer import Observer
from hvdlite.members.membership import Membership
from hvdlite.settings import Settings


def decider_of(
    membership: Membership, options: Settings, link: ControlLink, observer: Observer, page: Page | None
) -> Decider:
    """Returns the decider of this rank, whose host has ``page``. A rank alone has it for calls only."""
    is_root, is_one_host = membership.rank == 0, membership.is_one_host
    leader, *others = membership.on_this_host
    if membership.size == 1:
        page = None
    root = RootDecider(membership, options, link, observer, page if is_one_host else None) if is_root else None
    if is_one_host:
        decider = root or RemoteDecider(membership, link)
        return decider if page is None else PageDecider(decider, page, root)
    if membership.rank != leader or not others:
        decider = root or RemoteDecider(membership, link)
        return decider if page is None else MemberPageDecider(decider, page)
    first = root or LeaderDecider(membership, link)
    return first if page is None else LeaderPageDecider(first, page, membership, link)
