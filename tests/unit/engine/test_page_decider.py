"""Ranks that agree in a page, move by move in one thread: nobody waits for ever, and all run the same.

A rank takes a turn only when something wakes it: a submit of its own, a message, its bell, or room for another batch.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest

from hvdlite import native
from hvdlite.control.page import BUSY, Page, PageOffer
from hvdlite.engine.deciders.base import Decider, Resubmit
from hvdlite.engine.deciders.choose import decider_of
from hvdlite.engine.deciders.page import PageDecider
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.negotiation.messages import JOIN_NAME, Common, End, EndKind, Kind, Ready, Request, Run, Tuning
from hvdlite.negotiation.wire import Message, ProtocolError, decode, encode
from hvdlite.settings import Settings
from hvdlite.tensors.dtypes import DType
from tests.harness.members import member
from tests.unit.programs import Moved, closing
from tests.unit.replicas import Leaf, request


class Rank(Leaf):
    """One rank: a replica and its decider, with links on which messages stay until the test moves them."""

    def __init__(self, rank: int, offer: PageOffer, size: int, options: Settings) -> None:
        super().__init__(rank)
        self.rank = rank
        self.page = Page([os.dup(fd) for fd in offer.fds], rank, size, offer.names)
        self.sent: list[deque[bytes]] = [deque() for _ in range(size if rank == 0 else 1)]
        link = Mock()
        link.send = self._send
        observer = Observer(InFlight(lambda: None), list(range(size)))
        self.decider: Decider = decider_of(member(rank, "a" * size), options, link, observer, self.page)
        self.must_turn = False
        self.now = 0.0
        self.ends: list[End] = []
        self.has_joined = False
        self.commons = self.runs = self.closings = 0

    def _send(self, message: Message) -> None:
        for number, queue in enumerate(self.sent):
            if self.rank > 0 or number > 0:
                queue.append(encode(message, 0, 0))

    def submit(self, *requests: Request, blank: Any = ()) -> None:
        super().submit(*requests, blank=blank)
        ready = decode(self.up.popleft(), 0, 0)
        assert isinstance(ready, Ready)
        self.decider.submit(ready, 0.0)

    def turn(self, has_room: bool = True) -> None:
        self.must_turn = False
        self.now += 0.5  # so that what is held back becomes due
        for decision in self.decider.decisions(has_room, self.now):
            if isinstance(decision, End):
                self.ends.append(decision)
            elif isinstance(decision, Resubmit):
                self.closings += 1
                decision.take(self.replica.unanswered(), 0.0)
            else:
                self.commons += isinstance(decision, Common)
                self.runs += isinstance(decision, Run)
                run = self.replica.run_of(decision) if isinstance(decision, Common) else decision
                self.down.append(encode(run, 0, 0))
                self.take()
        self.has_joined = JOIN_NAME in self.in_flight
        self.must_turn = self.decider.arm()

    @property
    def is_rung(self) -> bool:
        with suppress(BlockingIOError):
            os.eventfd_read(self.page.bell)
            self.must_turn = True
        return self.must_turn


class Ranks(Moved):
    def __init__(self, size: int, seed: int = 0, **options: Any) -> None:
        offer = PageOffer(size, 64)
        settings = Settings(**{"cache_capacity": 64, **options})
        self.ranks = [Rank(rank, offer, size, settings) for rank in range(size)]
        offer.close()
        self.random = random.Random(seed)

    def moves(self) -> list[tuple[str, int]]:
        moves = [("bell", rank.rank) for rank in self.ranks if rank.is_rung]
        moves += [("up", rank.rank) for rank in self.ranks[1:] if rank.sent[0]]
        moves += [("down", number) for number, queue in enumerate(self.ranks[0].sent) if queue]
        moves += [("room", rank.rank) for rank in self.ranks if rank.decider.has_agreed]
        return moves

    def make(self, move: str, number: int) -> None:
        rank = self.ranks[number]
        if move == "up":
            message = decode(rank.sent[0].popleft(), 0, 0)
            rank = self.ranks[0]
            rank.decider.receive(number, message, 0.0)
        elif move == "down":
            rank.decider.receive(0, decode(self.ranks[0].sent[number].popleft(), 0, 0), 0.0)
        rank.turn(move in ("room", "bell") or self.random.random() < 0.8)


@pytest.fixture
def ranks() -> Iterator[Any]:
    with closing(Ranks) as make:
        yield make


def _step(all_ranks: Ranks, *requests: Request) -> None:
    for rank in all_ranks.ranks:
        rank.submit(*requests)
        rank.turn()
    all_ranks.settle()


def test_known_tensors_take_no_message(ranks: Any) -> None:
    three = ranks(3)
    for _ in range(3):
        _step(three, request("a"), request("b"))
    three.check()
    for rank in three.ranks:
        assert rank.ran == [("a", "b")] * 3
        assert (rank.runs, rank.commons) == (1, 2)
    assert three.ranks[0].closings == 0


def test_whoever_is_last_decides_in_its_own_turn(ranks: Any) -> None:
    two = ranks(2)
    _step(two, request("a"))
    for last in (0, 1):
        two.ranks[1 - last].submit(request("a"))
        two.ranks[1 - last].turn()
        assert not two.moves()
        two.ranks[last].submit(request("a"))
        two.ranks[last].turn()
        assert "a" not in two.ranks[last].in_flight
        assert two.moves() == [("bell", 1 - last)]
        two.settle()
    two.check()


def test_a_rank_without_room_leaves_the_decision_to_its_next_turn(ranks: Any) -> None:
    two = ranks(2)
    _step(two, request("a"))
    two.ranks[0].submit(request("a"))
    two.ranks[0].turn()
    two.ranks[1].submit(request("a"))
    two.ranks[1].turn(has_room=False)
    assert two.moves() == [("room", 1)]
    two.settle()
    two.check()


def test_a_root_that_is_late_hears_that_others_wait(ranks: Any) -> None:
    two = ranks(2, stall_check_time_seconds=3.0)
    _step(two, request("a"))
    root, other = two.ranks
    other.submit(request("a"))
    other.turn()
    assert not two.moves()
    while root.decider.due is None:
        assert other.decider.due is not None
        assert other.now < 4
        other.turn()
        two.settle()
    assert root.decider.due > root.now
    root.submit(request("a"))
    root.turn()
    two.settle()
    assert other.decider.due is None
    two.check()


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": (4,)},
        {"dtype": DType.FLOAT64},
        {"op": 0},
        {"prescale": 2.0},
        {"postscale": 2.0},
        {"kind": Kind.BROADCAST, "root": 1},
        {"cacheable": False},
    ],
    ids=str,
)
def test_another_description_is_another_tensor(ranks: Any, changes: dict[str, Any]) -> None:
    three = ranks(3)
    _step(three, request("a"))
    _step(three, request("a", **changes))  # by all: no rank submits the bit, so the page stays open
    assert [rank.closings for rank in three.ranks] == [0, 0, 0]
    assert not any(rank.errors for rank in three.ranks)
    _step(three, request("a"))
    three.ranks[0].submit(request("a"))
    three.ranks[0].turn()
    three.ranks[1].submit(request("a", **changes))
    three.ranks[1].turn()
    three.settle()
    three.ranks[2].submit(request("a"))  # the bit, after the root has done all that it can
    three.ranks[2].turn()
    three.settle()
    for rank in three.ranks:
        if changes != {"cacheable": False}:
            assert "disagree about" in rank.errors["a"]
        assert not rank.in_flight
        assert rank.closings == 2  # closed and opened
    runs = three.ranks[0].runs
    _step(three, request("b"))
    _step(three, request("b"))
    assert [rank.runs for rank in three.ranks] == [runs + 1] * 3
    three.check()


def test_a_changed_threshold_applies_at_the_same_batch(ranks: Any) -> None:
    two = ranks(2)
    for _ in range(2):
        _step(two, request("a"), request("b"))
    two.ranks[0].decider.tune(Tuning(0))
    two.ranks[0].turn()
    two.settle()
    _step(two, request("a"), request("b"))
    assert two.ranks[0].ran == [("a", "b"), ("a", "b"), ("a",), ("b",)]
    two.check()


def test_while_tensors_are_held_back_the_root_decides(ranks: Any) -> None:
    two = ranks(2)
    _step(two, request("a"))
    two.ranks[0].decider.tune(Tuning(1 << 20, 1.0))
    two.ranks[0].turn()
    two.settle()
    assert [rank.closings for rank in two.ranks] == [1, 1]
    two.ranks[0].decider.tune(Tuning(1 << 20))
    two.ranks[0].turn()
    two.settle()
    assert [rank.closings for rank in two.ranks] == [2, 2]
    _step(two, request("a"))
    two.check()


@pytest.mark.parametrize("leaver", [0, 1])
def test_what_was_agreed_before_an_orderly_end_runs(ranks: Any, leaver: int) -> None:
    three = ranks(3)
    _step(three, request("a"))
    for rank in three.ranks:
        rank.submit(request("a"))
    three.ranks[2].turn()  # agrees on it; the others have not read that
    leaving = three.ranks[leaver]
    leaving.decider.end(End(EndKind.LEFT, leaver, "a", ""))
    three.settle()
    leaving.turn()
    three.settle()
    for rank in three.ranks:
        assert rank.ran == [("a",), ("a",)]
        assert [end.kind for end in rank.ends] == [EndKind.LEFT]


def test_an_end_counts_though_a_rank_that_left_reads_the_page_no_more(ranks: Any) -> None:
    three = ranks(3)
    for _ in range(4):
        _step(three, request("a"))
    quiet = three.ranks[2]
    for _ in range(2):
        quiet.submit(request("a"))
        quiet.in_flight.clear()  # it takes no turn, so there is no room for a third decision
        for rank in three.ranks[:2]:
            rank.submit(request("a"))
            rank.turn()
        three.ranks[0].turn()
    three.ranks[1].decider.end(End(EndKind.LEFT, 1, "a", ""))
    for _ in range(6):
        for move in three.moves():
            if move[1] != 2:
                three.make(*move)
    three.ranks[0].decider.lost()
    for rank in three.ranks[:2]:
        rank.turn()
        assert [end.kind for end in rank.ends] == [EndKind.LEFT]


@pytest.mark.parametrize("exiting", [0, 1])
@pytest.mark.parametrize("has_room", [True, False])
def test_what_was_agreed_before_a_rank_is_gone_runs(ranks: Any, exiting: int, has_room: bool) -> None:
    three = ranks(3)
    _step(three, request("a"))
    for rank in three.ranks:
        rank.submit(request("a"))
    three.ranks[exiting].turn()  # agrees on it, runs it and exits; the others have not read that
    others = [rank for rank in three.ranks if rank.rank != exiting]
    others[0].submit(request("b"))  # alone
    gone = End(EndKind.GONE, exiting, "a", "its process ended")
    for rank in others:  # the root tells rank 2, or both notice by themselves
        if exiting == 0 or rank.rank == 0:
            rank.decider.end(gone)
    others[0].turn(has_room)
    while three.ranks[0].sent[2]:
        three.make("down", 2)
    others[1].turn(has_room)
    for rank in others:
        assert rank.ran == [("a",), ("a",)]
        assert rank.ends == [gone]


def test_a_rank_that_is_gone_ends_no_call(ranks: Any) -> None:
    inner, page = Mock(), Mock(names=64)
    page.next.return_value = (BUSY, 0, 0, 0)
    decider = PageDecider(inner, page)
    gone = End(EndKind.GONE, 1, "a", "its process ended")
    inner.decisions.return_value = [gone]
    assert list(decider.decisions(True, 0.0)) == []
    inner.decisions.return_value = []
    page.next.side_effect = [(native.DECIDED_TENSORS, 1, 0, 1), (native.DECIDED_NOTHING, 0, 0, 0)]
    assert list(decider.decisions(True, 0.0)) == [Common(1, 0, 1), gone]


def test_another_end_counts_at_once(ranks: Any) -> None:
    two = ranks(2)
    _step(two, request("a"))
    two.ranks[1].submit(request("a"))
    two.ranks[1].turn()
    two.ranks[0].decider.end(End(EndKind.LOST, 1, "a", "it died"))
    two.ranks[0].turn()
    assert [end.kind for end in two.ranks[0].ends] == [EndKind.LOST]
    two.settle()
    assert [end.kind for end in two.ranks[1].ends] == [EndKind.LOST]


def test_a_loss_does_not_overtake_the_end_that_caused_it() -> None:
    """A rank that left made another one exit, which the root notices while a call has the page."""
    left, lost = End(EndKind.LEFT, 1, "a", "it left"), End(EndKind.LOST, 2, "a", "its process ended")
    inner, page = Mock(), Mock(names=64)
    page.next.return_value = (BUSY, 0, 0, 0)
    decider = PageDecider(inner, page)
    inner.decisions.return_value = [left]
    assert list(decider.decisions(True, 0.0)) == []
    inner.decisions.return_value = [lost]
    assert list(decider.decisions(True, 0.0)) == [left, lost]
    page.abort.assert_called()


def test_a_damaged_page_is_an_error(ranks: Any) -> None:
    two = ranks(2)
    _step(two, request("a"))
    two.ranks[1].decider.submit(Ready(0, 1, ()), 0.0)
    two.ranks[1].decider.submit(Ready(0, 1, ()), 0.0)
    two.ranks[1].decider.submit(Ready(0, 1, ()), 0.0)
    with pytest.raises(ProtocolError, match="damaged the memory"):
        two.ranks[0].turn()


def test_many_ranks_agree(ranks: Any) -> None:
    many = ranks(70)
    for names in ("ab", "ba", "c", "abc"):
        for rank in many.random.sample(many.ranks, 70):
            for name in names:
                rank.submit(request(name))
            rank.turn()
        many.settle()
    many.check()
    assert [rank.commons > 0 for rank in many.ranks] == [True] * 70


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_never_differ_and_never_wait_for_ever(ranks: Any, size: int, seed: int) -> None:
    chance = random.Random(f"{size} {seed}")
    all_ranks = ranks(
        size, seed, cache_capacity=chance.choice([4, 64, 64]), fusion_threshold=chance.choice([0, 24, 4096])
    )
    for _ in range(chance.randint(2, 4)):  # until all have joined
        all_ranks.run_epoch(chance)
        all_ranks.check()
