"""The rendezvous without connections: who comes, waits, leaves and is told what."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from hvdlite.rendezvous.roster import LEAVING, NEXT_EPOCH, WATCHING, Arrival, Roster


class Meeting:
    """Ranks at a roster. A caller is a name; ``told`` has what each got, in order."""

    def __init__(self, size: int, only: int | None = None) -> None:
        self.gone: set[str] = set()
        self.roster: Roster[str] = Roster(size, self.gone.__contains__, only)
        self.size = size
        self.told: dict[str, list[Any]] = {}
        self.now = 0.0

    def come(
        self,
        rank: int,
        epoch: int = NEXT_EPOCH,
        number: int = 0,
        offer: Any = None,
        timeout_s: float = 10.0,
        who: str = "",
    ) -> Any:
        """Rank ``rank`` comes; returns what it has been told, or None while it waits."""
        who = who or f"rank {rank}"
        self.told.pop(who, None)
        arrival = Arrival(epoch, number, rank, self.size, timeout_s, json.dumps(offer))
        self._send(self.roster.arrive(arrival, who, self.now))
        return self.answer(who)

    def all_come(self, epoch: int = NEXT_EPOCH, number: int = 0) -> Any:
        for rank in range(self.size):
            self.come(rank, epoch, number, offer=rank)
        answers = [self.answer(f"rank {rank}") for rank in range(self.size)]
        assert answers == answers[:1] * self.size
        return answers[0]

    def pass_time(self, now: float) -> None:
        self.now = now
        self._send(self.roster.expire(now))

    def answer(self, who: str) -> Any:
        answers = self.told.get(who, [])
        assert len(answers) <= 1, f"{who} was told {answers}"
        return answers[0] if answers else None

    def _send(self, replies: Sequence[tuple[str, str]]) -> None:
        for caller, message in replies:
            self.told.setdefault(caller, []).append(json.loads(message))


def test_when_all_have_come_an_epoch_begins_and_all_get_the_offers_in_rank_order() -> None:
    meeting = Meeting(3)
    assert meeting.come(2, offer="c") is None
    assert meeting.come(0, offer="a") is None
    expected = {"epoch": 0, "offers": ["a", {"b": [1]}, "c"]}
    assert meeting.come(1, offer={"b": [1]}) == expected
    assert [meeting.answer(f"rank {rank}") for rank in range(3)] == [expected] * 3


def test_epochs_and_their_rounds_are_counted() -> None:
    meeting = Meeting(2)
    for epoch in range(3):
        assert meeting.all_come()["epoch"] == epoch
        for number in (1, 2):
            assert meeting.all_come(epoch, number) == {"epoch": epoch, "offers": [0, 1]}
    assert meeting.come(0, 1, 3) == {"error": "epoch 1 of this job is over; call init() again on all ranks"}


def test_a_rank_of_another_job_is_refused() -> None:
    meeting = Meeting(2)
    for rank, size in ((0, 3), (2, 2), (-1, 2)):
        meeting.size = size
        assert meeting.come(rank) == {"error": f"rank {rank} of {size} is not of this job of 2 ranks"}


def test_two_callers_with_one_rank_are_told_apart() -> None:
    meeting = Meeting(2)
    assert meeting.come(0) is None
    told = meeting.come(0, who="another")
    assert told == {"error": "rank 0 is present already; two processes have the same HVDLITE_RANK"}
    assert meeting.answer("rank 0") is None
    meeting.gone.add("rank 0")
    assert meeting.come(0, who="another") is None
    assert meeting.come(1) == meeting.answer("another") == {"epoch": 0, "offers": [None, None]}
    assert meeting.answer("rank 0") is None


def test_a_caller_that_has_left_counts_as_not_come() -> None:
    meeting = Meeting(2)
    meeting.come(0, timeout_s=1.0)
    meeting.gone.add("rank 0")
    meeting.pass_time(5.0)
    assert meeting.roster.due == float("inf")
    assert meeting.come(1) is None


def test_the_first_time_out_ends_the_round_and_names_who_is_missing() -> None:
    meeting = Meeting(4)
    meeting.come(1, timeout_s=5.0)
    meeting.come(3, timeout_s=2.0)
    assert meeting.roster.due == 2.0
    meeting.pass_time(1.9)
    assert meeting.answer("rank 1") is None
    meeting.pass_time(2.0)
    assert meeting.answer("rank 1") == meeting.answer("rank 3") == {"missing": [0, 2]}
    assert meeting.roster.due == float("inf")
    assert meeting.all_come()["epoch"] == 0  # none had begun


@pytest.mark.parametrize("way", ["says so", "begins again"])
def test_a_rank_that_leaves_ends_the_epoch_for_all(way: str) -> None:
    meeting = Meeting(3)
    meeting.all_come()
    meeting.come(0, 0, 1)
    meeting.come(1, 0, WATCHING)
    if way == "says so":
        why = {"error": "rank 2 has left: no memory; call it again on all ranks"}
        assert meeting.come(2, 0, LEAVING, "no memory") == why
    else:
        why = {"error": "rank 2 was interrupted in init() and calls it again; call it again on all ranks"}
        assert meeting.come(2) is None
    assert meeting.answer("rank 0") == meeting.answer("rank 1") == why  # those who wait
    assert meeting.come(1, 0, 1) == why  # and those who come later
    assert meeting.come(0, 0, LEAVING, "for another reason") == why  # the first reason counts
    for rank in range(3 if way == "says so" else 2):
        meeting.come(rank)
    assert [meeting.answer(f"rank {rank}")["epoch"] for rank in range(3)] == [1] * 3
    assert meeting.all_come(1, 1)["epoch"] == 1


def test_a_rank_that_watches_completes_no_round() -> None:
    meeting = Meeting(2)
    meeting.all_come()
    assert [meeting.come(rank, 0, WATCHING, who=f"watcher {rank}") for rank in range(2)] == [None, None]
    assert meeting.all_come(0, 1) == {"epoch": 0, "offers": [0, 1]}
    assert meeting.answer("watcher 0") is None


def test_a_roster_of_one_epoch_refuses_the_next() -> None:
    meeting = Meeting(2, only=7)
    assert meeting.all_come()["epoch"] == 7
    assert meeting.come(0) == {"over": 7}


def test_another_number_of_ranks_is_expected_in_later_epochs() -> None:
    meeting = Meeting(3)
    meeting.all_come()
    meeting.roster.expect(2)
    assert meeting.come(0, 0, 1) == {"error": "rank 0 of 3 is not of this job of 2 ranks"}
    meeting.size = 2
    assert meeting.all_come() == {"epoch": 1, "offers": [0, 1]}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_ranks_do_a_round_is_answered_to_all_of_them_alike_and_nobody_twice(seed: int) -> None:
    rng = random.Random(seed)
    gone: set[int] = set()
    roster: Roster[int] = Roster(3, gone.__contains__)
    rank_of: dict[int, int] = {}
    answered: set[int] = set()
    epoch, now = -1, 0.0
    for caller in range(2000):
        rank_of[caller] = rank = rng.randrange(3)
        wanted = rng.choice((NEXT_EPOCH, epoch, epoch, epoch, epoch - 1))
        number = rng.choice((0, 1, 1, 1, WATCHING, LEAVING) if wanted != NEXT_EPOCH else (0,))
        replies = roster.arrive(Arrival(wanted, number, rank, 3, rng.choice((1.0, 5.0)), str(caller)), caller, now)
        now += rng.random() / 10
        if rng.random() < 0.1:
            gone.add(rng.randrange(caller + 1))
        for some in (replies, roster.expire(now)):
            told = {each.caller: json.loads(each.message) for each in some}
            assert len(told) == len(some)
            assert not told.keys() & answered
            answered |= told.keys()
            if agreed := [answer for answer in told.values() if "offers" in answer]:
                assert agreed == agreed[:1] * 3
                assert [rank_of[each] for each in agreed[0]["offers"]] == [0, 1, 2]
                assert set(agreed[0]["offers"]) <= told.keys()
                assert agreed[0]["epoch"] in (epoch, epoch + 1)
                epoch = agreed[0]["epoch"]
    assert epoch > 10
