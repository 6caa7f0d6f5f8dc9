"""Ranks of several hosts that agree in the page of each host, move by move in one thread.

A rank takes a turn only when something wakes it: a submit of its own, a message, its bell, or room for another batch.
Time passes only where a test says so.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest

from hvdlite.control.hostlink import LeaderLink, RootHostLink
from hvdlite.control.link import ControlLink, Lost, Received
from hvdlite.control.page import Page, PageOffer
from hvdlite.engine.deciders.base import Resubmit
from hvdlite.engine.deciders.choose import decider_of
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.negotiation.messages import JOIN_NAME, End, EndKind, Ready, Request, Run
from hvdlite.negotiation.wire import Message, decode, encode
from hvdlite.settings import Settings
from tests.harness.members import member
from tests.unit.programs import Moved, closing
from tests.unit.replicas import Leaf, group, request

Wires = dict[tuple[int, int], deque[bytes]]


class Link(ControlLink):
    """One end, whose messages stay on ``wires``, by sender and receiver, until the test moves them."""

    def __init__(self, wires: Wires, rank: int, peers: list[int]) -> None:
        self.inbox = Mock()
        self._wires, self._rank, self._peers = wires, rank, peers
        self.came: deque[Received | Lost] = deque()
        self.sent = 0

    def send(self, message: Message) -> None:
        self.sent += 1
        for peer in self._peers:
            self._wires[self._rank, peer].append(encode(message, 0, 0))

    def receive(self) -> Iterator[Received | Lost]:
        while self.came:
            yield self.came.popleft()

    def close(self) -> None:
        pass


class Rank(Leaf):
    """One rank: a replica, its decider and its links."""

    def __init__(self, rank: int, hosts: str, offers: dict[str, PageOffer], wires: Wires, options: Settings) -> None:
        super().__init__(rank)
        self.rank = rank
        membership = member(rank, hosts)
        here = membership.on_this_host
        leader, *others = here
        self.page: Page | None = None
        if hosts[rank] in offers:
            offer = offers[hosts[rank]]
            self.page = Page([os.dup(fd) for fd in offer.fds], here.index(rank), len(here), offer.names)
        leaders = [other for other in membership.by_leader if other > 0]
        self.across = Link(wires, rank, leaders if rank == 0 else [0])
        self.within = Link(wires, rank, others if rank == leader else [leader])
        self.within.page = self.page
        across, within = self.across, self.within
        self.link: ControlLink
        if rank != leader:
            self.link = self.within
        elif rank == 0:
            self.link = RootHostLink(across, within, membership.by_leader)  # type: ignore[arg-type]
        elif others:
            self.link = LeaderLink(across, within, rank)  # type: ignore[arg-type]
        else:
            self.link = self.across
        self.observer = Observer(InFlight(lambda: None), membership.leader_of)
        self.decider = decider_of(membership, options, self.link, self.observer, self.page)
        self.must_turn = self.has_joined = False
        self.now = 1.0
        self.ends: list[End] = []
        self.runs = self.openings = 0

    def submit(self, *requests: Request, blank: Any = ()) -> None:
        super().submit(*requests, blank=blank)
        ready = decode(self.up.popleft(), 0, 0)
        assert isinstance(ready, Ready)
        self.decider.submit(ready, self.now)
        self.turn()

    def turn(self, has_room: bool = True) -> None:
        self.must_turn = False
        for item in self.link.receive():
            assert not isinstance(item, Lost)
            self.decider.receive(*item, self.now)
        for decision in self.decider.decisions(has_room, self.now):
            if isinstance(decision, End):
                self.ends.append(decision)
            elif isinstance(decision, Resubmit):
                decision.take(self.replica.unanswered(), self.now)
            else:
                assert isinstance(decision, Run)
                self.openings += decision.opens
                self.runs += not decision.opens
                self.down.append(encode(decision, 0, 0))
                self.take()
        self.has_joined = JOIN_NAME in self.in_flight
        self.must_turn = self.decider.arm()

    @property
    def is_rung(self) -> bool:
        with suppress(BlockingIOError):
            if self.page is not None:
                os.eventfd_read(self.page.bell)
                self.must_turn = True
        return self.must_turn


class Ranks(Moved):
    """All of them, on ``hosts``, a letter for each rank."""

    def __init__(self, hosts: str, seed: int = 0, **options: Any) -> None:
        self.hosts = hosts
        self.wires: Wires = defaultdict(deque)
        settings = Settings(**{"cache_capacity": 64, **options})
        offers = {host: PageOffer(hosts.count(host), 64) for host in set(hosts) if hosts.count(host) > 1}
        self.ranks = [Rank(rank, hosts, offers, self.wires, settings) for rank in range(len(hosts))]
        for offer in offers.values():
            offer.close()
        self.random = random.Random(seed)

    def moves(self) -> list[tuple[str, Any]]:
        moves: list[tuple[str, Any]] = [("bell", rank.rank) for rank in self.ranks if rank.is_rung]
        moves += [("message", ends) for ends, wire in self.wires.items() if wire]
        moves += [("room", rank.rank) for rank in self.ranks if rank.decider.has_agreed]
        return moves

    def make(self, move: str, which: Any) -> None:
        if move == "message":
            sender, receiver = which
            rank = self.ranks[receiver]
            link = rank.within if self.hosts[sender] == self.hosts[receiver] else rank.across
            link.came.append((sender, decode(self.wires[which].popleft(), 0, 0)))
            rank.turn(self.random.random() < 0.8)
        else:
            self.ranks[which].turn()

    def step(self, *requests: Request) -> None:
        """All ranks submit ``requests``, in a random order."""
        for rank in self.random.sample(self.ranks, len(self.ranks)):
            rank.submit(*requests)
        self.settle()

    def pass_time(self, seconds: float) -> None:
        """Lets ranks take turns when they are due, and no others, until the time has passed or all is done."""
        until = self.ranks[0].now + seconds
        while any(rank.in_flight for rank in self.ranks):
            due = min((rank.decider.due or until for rank in self.ranks), default=until)
            if due >= until:
                break
            for rank in self.ranks:
                rank.now = max(rank.now, due)
            for rank in self.ranks:
                if rank.decider.due is not None and rank.decider.due <= rank.now:
                    rank.turn()
            self.settle()
        for rank in self.ranks:
            rank.now = until


@pytest.fixture
def ranks() -> Iterator[Any]:
    with closing(Ranks) as make:
        yield make


LAYOUTS = ["aabb", "abb", "aab", "aaabb", "abcc", "abab", "aabbccc"]


@pytest.mark.parametrize("hosts", LAYOUTS)
def test_a_host_reports_known_tensors_in_one_message(ranks: Any, hosts: str) -> None:
    job = ranks(hosts)
    for _ in range(3):
        job.step(request("a"), request("b"))
    job.check()
    assert {len(rank.ran) for rank in job.ranks} == {3}
    leaders = {hosts.index(host): hosts.count(host) for host in hosts}
    for rank in job.ranks[1:]:
        if rank.rank not in leaders:  # the first step, in which the names were new
            assert (rank.within.sent, rank.across.sent) == (1, 0)
        elif leaders[rank.rank] > 1:
            assert rank.across.sent <= leaders[rank.rank] + 2
    assert not any(rank.openings for rank in job.ranks)


def test_the_last_of_a_host_is_reported_last_and_when_it_came(ranks: Any) -> None:
    job = ranks("aabb")
    job.step(request("a"))
    arrived = []
    job.ranks[0].observer.arrived = lambda rank, was_last, at: arrived.append((rank, at))
    for now, number in ((2.0, 3), (2.1, 1), (2.2, 0), (2.3, 2)):
        job.ranks[number].now = now
        job.ranks[number].submit(request("a"))
    job.ranks[0].now = 2.5
    job.settle()
    job.check()
    assert [rank for rank, _ in arrived] == [1, 0, 3, 2]


def test_a_rank_that_sleeps_is_woken_when_others_have_decided_twice_without_it(ranks: Any) -> None:
    """It has submitted everything, and no run comes, because another host has not."""
    job = ranks("aab")
    job.step(request("a"), request("b"), request("c"))
    first, asleep, elsewhere = job.ranks
    asleep.submit(request("a"), request("b"), request("c"))
    for name in "abc":
        first.submit(request(name))
    job.settle()
    elsewhere.submit(request("c"))
    job.settle()
    assert [list(rank.in_flight) for rank in job.ranks] == [["a", "b"], ["a", "b"], []]


@pytest.mark.parametrize("hosts", LAYOUTS)
@pytest.mark.parametrize("changed", [{"shape": (4,)}, {"cacheable": False}, {"op": 0}], ids=str)
def test_what_one_rank_describes_anew_is_taken_from_the_pages(ranks: Any, hosts: str, changed: dict[str, Any]) -> None:
    for odd in range(len(hosts)):
        job = ranks(hosts)
        job.step(request("a"), request("b"))
        for rank in job.ranks:
            rank.submit(request("a", **changed) if rank.rank == odd else request("a"))
        job.settle()
        if "cacheable" not in changed:
            assert all("disagree about" in rank.errors["a"] for rank in job.ranks)
        runs = job.ranks[0].runs
        job.step(request("b"))
        job.step(request("b"))
        job.check()
        assert job.ranks[0].runs == runs + 2
        for rank in job.ranks:
            assert rank.openings == (hosts.count(hosts[rank.rank]) > 1 and hosts[rank.rank] == hosts[odd])


def test_a_list_beyond_the_page_is_answered_as_a_whole(ranks: Any) -> None:
    """Two of its tensors have bits that the page has room for, two have not."""
    job = ranks("aabb", cache_capacity=128)
    job.step(*(request(f"other {number}") for number in range(62)))
    for _ in range(2):
        job.step(*group("g", 4))
    for rank in job.ranks[2:]:
        rank.submit(*group("g", 3))
    job.settle()
    for number in (1, 0):
        job.ranks[number].submit(*group("g", 4))
    while moves := [move for move in job.moves() if move != ("message", (1, 0))]:
        job.make(*moves[0])
    job.settle()
    job.check()
    for rank in job.ranks:
        assert "disagree about the number of tensors in group 'g'" in rank.errors["g[0]"]
    for _ in range(2):
        job.step(*group("g", 4), request("other 1"))
    job.check()


def test_names_are_looked_up_in_the_generation_of_their_run(ranks: Any) -> None:
    """A leader waits for a closing before it begins a generation in which a member already submits a bit."""
    job = ranks("aabb", cache_capacity=3)
    root, beside, leader, other = job.ranks
    wrong = request("y", shape=(4,))

    def settle(*held: Any) -> None:
        while moves := [move for move in job.moves() if move[1] not in held]:
            job.make(*moves[0])

    job.step(request("y"), request("p"), request("q"))
    other.submit(request("p"), request("q"), request("n"), request("x"), wrong)
    leader.submit(request("p"))
    leader.submit(request("q"))
    for rank in (root, beside, leader):
        rank.submit(request("n"))
    settle(3, (2, 3))
    leader.submit(wrong)
    beside.submit(request("y"))
    for rank in (root, beside, leader):
        rank.submit(request("x"))
    settle(3, (2, 3))
    settle(2, (3, 2), (0, 2))
    other.submit(request("x"))
    root.submit(request("y"))
    settle(2, (3, 2), (0, 2))
    job.settle()
    for rank in (root, beside):
        rank.submit(request("x", shape=(4,)))
    job.settle()
    leader.submit(request("x"))
    job.settle()
    for rank in (root, beside):
        rank.submit(request("p"), request("q"))
    job.settle()
    job.check()


@pytest.mark.parametrize("asleep", [1, 3])
def test_what_others_report_does_not_wait_for_a_rank_that_takes_no_turn(ranks: Any, asleep: int) -> None:
    job = ranks("aabb", stall_check_time_seconds=5.0)
    found: list[str] = []
    job.ranks[0].observer.on_finding = lambda finding: not found.append(finding.text)
    job.step(request("a"))
    sleeper = job.ranks[asleep]
    others = [rank for rank in job.ranks if rank is not sleeper]
    for rank in others:
        rank.submit(request("a"))
    for _ in range(40):
        for rank in others:
            rank.now += 0.2
            rank.turn()
        while moves := [move for move in job.moves() if move[1] not in (asleep, (asleep - 1, asleep))]:
            job.make(*moves[0])
    assert len(found) == 1
    assert f"rank(s) {asleep} did not submit a" in found[0]
    sleeper.submit(request("a"))
    job.settle()
    job.check()


@pytest.mark.parametrize("hosts", LAYOUTS)
@pytest.mark.parametrize("late", [0, 1, -1])
def test_the_root_hears_who_is_late(ranks: Any, hosts: str, late: int) -> None:
    job = ranks(hosts, stall_check_time_seconds=5.0)
    found: list[str] = []
    job.ranks[0].observer.on_finding = lambda finding: not found.append(finding.text)
    late %= len(hosts)
    for _ in range(2):
        job.step(request("a"), request("b"))
    for rank in job.ranks:
        if rank.rank != late:
            rank.submit(request("a"))
    job.settle()
    job.pass_time(8.0)
    (text,) = found
    assert f"rank(s) {late} did not submit a" in text
    job.ranks[late].submit(request("a"))
    job.settle()
    job.step(request("b"))
    job.check()


def test_what_others_submit_meanwhile_does_not_hide_a_late_tensor(ranks: Any) -> None:
    job = ranks("aabb", stall_check_time_seconds=5.0)
    found: list[str] = []
    job.ranks[0].observer.on_finding = lambda finding: not found.append(finding.text)
    job.step(request("a"), request("b"))
    for rank in job.ranks[:3]:
        rank.submit(request("a"))
    for _ in range(40):
        job.pass_time(0.2)
        job.step(request("b"))
    assert len(found) == 1
    assert "rank(s) 3 did not submit a" in found[0]
    job.ranks[3].submit(request("a"))
    job.settle()
    job.check()


@pytest.mark.parametrize("leaver", range(4))
def test_what_was_agreed_before_an_orderly_end_runs(ranks: Any, leaver: int) -> None:
    job = ranks("aabb")
    job.step(request("a"))
    for rank in job.ranks:
        rank.submit(request("a"))
    job.settle()
    job.ranks[(leaver + 1) % 4].submit(request("b"))
    job.ranks[leaver].decider.end(End(EndKind.LEFT, leaver, "a", ""))
    job.settle()
    job.ranks[leaver].turn()
    job.settle()
    for rank in job.ranks:
        assert rank.ran == [("a",), ("a",)]
        assert [end.kind for end in rank.ends] == [EndKind.LEFT]


@pytest.mark.parametrize("gone", [1, 3])
def test_a_run_that_waits_for_a_closing_counts_when_a_rank_is_gone(ranks: Any, gone: int) -> None:
    """The cache is full, so the next run begins a generation; the rank that is gone closes the page no more."""
    job = ranks("aabb", cache_capacity=2)
    job.step(request("a"), request("b"))
    for rank in job.ranks:
        rank.submit(request("c"))
    leader = job.ranks[0 if gone == 1 else 2]
    while job.moves():
        for move in job.moves():
            if move[1] not in (gone, (leader.rank, gone)):
                job.make(*move)
        if all(move[1] in (gone, (leader.rank, gone)) for move in job.moves()):
            break
    for rank in job.ranks:
        if rank.rank != gone:
            rank.submit(request("d"))
    leader.decider.end(End(EndKind.GONE, gone, "b", "its process ended"))
    for _ in range(50):
        for move in job.moves():
            if move[1] not in (gone, (leader.rank, gone)):
                job.make(*move)
    for rank in job.ranks:
        if rank.rank != gone:
            assert rank.ran[:2] == [("a", "b"), ("c",)]
            assert {end.kind for end in rank.ends} == {EndKind.GONE}


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("hosts", LAYOUTS)
def test_ranks_never_differ_and_never_wait_for_a_timer(ranks: Any, hosts: str, seed: int) -> None:
    chance = random.Random(f"{hosts} {seed}")
    job = ranks(hosts, seed, cache_capacity=chance.choice([4, 64, 64]), fusion_threshold=chance.choice([0, 24, 4096]))
    for _ in range(chance.randint(2, 4)):
        job.run_epoch(chance)
        job.check()
