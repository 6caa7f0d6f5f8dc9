"""The first rank of a host combines the messages of its host's ranks; all ends are in one process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from unittest.mock import Mock

import pytest

from hvdlite.control.hostlink import LeaderLink
from hvdlite.control.link import Lost
from hvdlite.control.unixlink import UnixLink
from hvdlite.control.zmqleaf import ZmqLeafLink
from hvdlite.control.zmqroot import ZmqRootLink
from hvdlite.engine.coordinator import Coordinator
from hvdlite.negotiation.messages import End, EndKind
from hvdlite.net.local_listener import LocalListener
from hvdlite.settings import Settings
from tests.harness.members import member
from tests.unit.links import soon

LEFT_2 = End(EndKind.LEFT, 2, "b", "it left")
LEFT_0 = End(EndKind.LEFT, 0, "a", "it left")


class Tree(NamedTuple):
    """Rank 0 on a host of its own, and ranks 1 and 2 on another one, whose leader is rank 1."""

    root: ZmqRootLink
    leader: LeaderLink
    member: UnixLink


@pytest.fixture
def tree() -> Iterator[Tree]:
    first, second, third = (member(rank, "abb") for rank in range(3))
    with LocalListener(first.key_for("listener")) as listener, ThreadPoolExecutor() as pool:
        root = ZmqRootLink(first, Settings())
        leaf = ZmqLeafLink(second, Settings())
        joining = pool.submit(leaf.join, root.address, soon())
        root.accept({1: leaf.address}, soon())
        joining.result()
        below, within = UnixLink(third, Settings()), UnixLink(second, Settings())
        below.dial(listener.address, soon())
        within.accept(listener, soon())
        leader = LeaderLink(leaf, within, 1)
        yield Tree(root, leader, below)
        for closing in [pool.submit(link.close) for link in (root, leader)]:
            closing.result()


def _coordinator(link: LeaderLink, executor: Mock) -> Coordinator:
    planes, in_flight, observer = Mock(), Mock(), Mock()
    in_flight.take_new.return_value = in_flight.all.return_value = executor.entries.return_value = []
    executor.backlog = 0
    return Coordinator(member(1, "abb"), Settings(), link, planes, in_flight, executor, observer, on_end=Mock())


def test_a_member_that_leaves_is_not_lost_although_the_root_is_gone_before_it(tree: Tree) -> None:
    """The root's answer never comes, and what was agreed before it left is still run on the leader."""
    executor = Mock()
    coordinator = _coordinator(tree.leader, executor)
    tree.root.send(LEFT_0)
    while coordinator.ended_by is None:
        tree.leader.inbox.sleep(100)
        coordinator.turn()
    tree.member.send(LEFT_2)
    tree.member.close()
    _turn_until_member_is_gone(coordinator, tree.leader)
    assert coordinator.ended_by == LEFT_0
    executor.abort.assert_not_called()


def test_a_member_that_ends_without_leaving_is_lost(tree: Tree) -> None:
    executor = Mock()
    coordinator = _coordinator(tree.leader, executor)
    tree.member.close()
    _turn_until_member_is_gone(coordinator, tree.leader)
    assert coordinator.ended_by == End(EndKind.LOST, 2, "b", "its process ended")
    executor.abort.assert_called_once()


def test_an_exit_is_told_to_those_who_will_see_it(tree: Tree) -> None:
    exits = [End(EndKind.EXITED, rank, host, "its process ended") for rank, host in enumerate("abb")]
    for link, end in zip((tree.root, tree.leader, tree.member), exits, strict=True):
        link.send(end)
    assert _first_of(tree.member) == (1, exits[1])
    assert _first_of(tree.root) == (1, exits[1])
    deadline, came = soon(), []
    while len(came) < 2:
        assert not deadline.is_over
        tree.leader.inbox.sleep(100)
        came += tree.leader.receive()
    assert sorted(came) == [(0, exits[0]), (2, exits[2])]
    tree.leader.send(LEFT_2)  # what comes next has overtaken nothing: no exit was passed on
    assert _first_of(tree.root) == (1, LEFT_2)
    tree.root.send(LEFT_0)
    while not (came := list(tree.leader.receive())):
        assert not deadline.is_over
        tree.leader.inbox.sleep(100)
    assert _first_of(tree.member) == (1, LEFT_0)
    tree.member.close()


def _first_of(link: UnixLink | ZmqRootLink) -> object:
    deadline = soon()
    while not deadline.is_over:
        for item in link.receive():
            return item
        link.inbox.sleep(100)
    raise AssertionError("nothing came")


def test_the_leader_hears_of_an_orderly_end_before_its_link_ends(tree: Tree) -> None:
    tree.member.send(LEFT_2)
    tree.member.close()
    came: list[object] = []
    deadline = soon()
    while not came or not isinstance(came[-1], Lost):
        assert not deadline.is_over
        tree.leader.inbox.sleep(100)
        came += tree.leader.receive()
    assert came == [(2, LEFT_2), Lost(2, "its process ended")]


def _turn_until_member_is_gone(coordinator: Coordinator, link: LeaderLink) -> None:
    within, deadline = link._within, soon()
    while within._peers:
        assert not deadline.is_over
        link.inbox.sleep(100)
        coordinator.turn()
