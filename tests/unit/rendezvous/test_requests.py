"""Requests at the rendezvous: one that cannot be is refused, and the ranks of the job meet all the same."""

from __future__ import annotations

import json
import os
import threading

import pytest

from hvdlite.errors import HorovodInternalError
from hvdlite.net.calls import Pending, ask
from hvdlite.rendezvous.client import Exchanges, Meeting, MeetingOver
from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.roster import Arrival, read_arrival
from hvdlite.rendezvous.server import RendezvousServer
from hvdlite.scope import Scope
from tests.harness import thread_ranks
from tests.harness.patience import PATIENCE_S

GOOD = {"epoch": 0, "round": 0, "rank": 0, "size": 2, "timeout_s": 5.0, "offer": {"host": "node7"}}
BAD = {
    **{f"{field} is missing": json.dumps({k: v for k, v in GOOD.items() if k != field}) for field in GOOD},
    **{f"rank {value}": json.dumps({**GOOD, "rank": value}) for value in (0.5, True, "0", None, [], float("inf"))},
    **{f"timeout {value}": json.dumps({**GOOD, "timeout_s": value}) for value in (-1, 1e9, "1", float("nan"), None)},
    "a timeout beyond all numbers": json.dumps(GOOD).replace("5.0", "1e999"),
    "a deep offer": json.dumps(GOOD).replace('"node7"', "[" * 20_000 + "]" * 20_000),
    "a list": "[]",
    "a number": "7",
    "no JSON": "{",
}


def test_a_good_request_is_read() -> None:
    assert read_arrival(json.dumps(GOOD).encode()) == Arrival(0, 0, 0, 2, 5.0, json.dumps(GOOD["offer"]))


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_no_request(name: str) -> None:
    with pytest.raises(ValueError):
        read_arrival(BAD[name].encode())


def test_the_server_refuses_them_and_goes_on() -> None:
    job = Job.create()
    with RendezvousServer(job, 2) as server:
        scope = Scope.of(PATIENCE_S)
        for text in BAD.values():
            answer = ask(server.address, job.key("rendezvous"), text.encode(), most=1 << 20, scope=scope)
            assert json.loads(answer) == {"error": "the request is malformed"}
        meeting = Meeting(job, server.address)
        ranks = [Exchanges(meeting, rank, 2, scope) for rank in range(2)]
        assert thread_ranks(2, lambda rank: ranks[rank](f"offer {rank}")) == [["offer 0", "offer 1"]] * 2


def test_who_is_missing_has_called_init_or_not() -> None:
    job = Job.create()
    with RendezvousServer(job, 2) as server:
        meeting = Meeting(job, server.address)
        with pytest.raises(HorovodInternalError, match=r"rank\(s\) 1 did not call it"):
            Exchanges(meeting, 0, 2, Scope.of(0.2))("")
        came = thread_ranks(2, lambda rank: _come(meeting, rank))
        came[0]._scope = Scope.of(0.2)
        with pytest.raises(HorovodInternalError, match=r"rank\(s\) 1 called it but did not continue"):
            came[0]("")


def _come(meeting: Meeting, rank: int, size: int = 2) -> Exchanges:
    """A rank that has come together with the others."""
    exchange = Exchanges(meeting, rank, size, Scope.of(PATIENCE_S))
    assert exchange(rank) == list(range(size))
    return exchange


def test_the_server_numbers_epochs_alike_for_all_ranks() -> None:
    job = Job.create()
    with RendezvousServer(job, 3) as server:
        meeting = Meeting(job, server.address)
        epochs = [thread_ranks(3, lambda rank: _come(meeting, rank, 3).epoch) for _ in range(3)]
    assert epochs == [[0] * 3, [1] * 3, [2] * 3]


@pytest.mark.parametrize("waits_already", [True, False])
def test_a_rank_that_begins_again_is_waited_for_by_none_of_the_others(waits_already: bool) -> None:
    """Rank 2 was interrupted in init() after all had come together. Ranks 0 and 1 wait for it, or come after that."""
    job = Job.create()
    with RendezvousServer(job, 3) as server:
        meeting = Meeting(job, server.address)
        came = thread_ranks(3, lambda rank: _come(meeting, rank, 3))

        def rank_goes_on(rank: int) -> int:
            if rank == 2:
                while waits_already and len(server._roster._rounds.get((0, 1), ())) < 2:
                    os.sched_yield()
            else:
                while not waits_already and not server._roster._broken:
                    os.sched_yield()
                with pytest.raises(
                    HorovodInternalError, match=r"rank 2 was interrupted in init\(\) and calls it again"
                ):
                    came[rank]("")
            return _come(meeting, rank, 3).epoch

        assert thread_ranks(3, rank_goes_on) == [1, 1, 1]
        with pytest.raises(HorovodInternalError, match="epoch 0 of this job is over"):
            came[0]("")


def test_an_answered_round_counts_although_a_faster_rank_has_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 calls init() again while the answer to the last round of the first one is on its way to rank 0."""
    job = Job.create()
    of_thread = threading.local()
    wait_for_answer = Pending.answer

    def answer_slowly(pending: Pending, scope: Scope) -> bytearray:
        if getattr(of_thread, "is_slow", False):
            while (1, 0) not in server._roster._rounds:  # then rank 0 has been told, before rank 1 joined this round
                os.sched_yield()
            scope.check()
        return wait_for_answer(pending, scope)

    monkeypatch.setattr(Pending, "answer", answer_slowly)
    with RendezvousServer(job, 2) as server:
        meeting = Meeting(job, server.address)

        def go_on(rank: int) -> int:
            came = _come(meeting, rank)
            with came.together():
                of_thread.is_slow = rank == 0
                assert came(f"last of {rank}") == ["last of 0", "last of 1"]
                of_thread.is_slow = False
            return _come(meeting, rank).epoch

        assert thread_ranks(2, go_on) == [1, 1]


def test_a_server_of_one_epoch_says_that_it_is_over() -> None:
    job = Job.create()
    with RendezvousServer(job, 2, only=5) as server:
        meeting = Meeting(job, server.address)
        assert [came.epoch for came in thread_ranks(2, lambda rank: _come(meeting, rank))] == [5, 5]
        with pytest.raises(MeetingOver) as raised:
            _come(meeting, 0)
    assert raised.value.epoch == 5
