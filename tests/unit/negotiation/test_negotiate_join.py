"""The negotiator when ranks have joined: what runs without them, what cannot, and when the join is over."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdlite.negotiation.messages import JOIN_NAME, Kind, Ready, Request
from hvdlite.negotiation.wire import ProtocolError
from hvdlite.tensors.dtypes import Adasum, Average, DType, Max, Sum
from tests.unit.replicas import Ranks, request

JOIN = request(JOIN_NAME, kind=Kind.JOIN, shape=(), cacheable=False)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_sum_runs_on_all_ranks_when_only_those_that_have_not_joined_submit(is_known: bool) -> None:
    ranks = Ranks(3)
    if is_known:
        ranks.step(request("t"))
    ranks.leaves[1].submit(JOIN)
    ranks.settle()
    for step in range(3):
        for rank in (0, 2):
            ranks.leaves[rank].submit(request("t"))
        ranks.settle()
        assert [leaf.ran.count(("t",)) for leaf in ranks.leaves] == [step + 1 + is_known] * 3


def test_a_tensor_that_waits_runs_when_the_last_missing_rank_joins() -> None:
    ranks = Ranks(2)
    ranks.step(request("known"))
    ranks.leaves[0].submit(request("known"), request("new", op=Average))
    ranks.settle()
    assert ranks.leaves[0].in_flight
    ranks.leaves[1].submit(JOIN)
    ranks.settle()
    assert not ranks.leaves[0].in_flight
    assert {name for batch in ranks.leaves[1].ran for name in batch} == {"known", "new"}


def test_the_last_rank_that_joins_is_told_to_all_after_everything_ran() -> None:
    ranks = Ranks(3)
    for rank in (2, 0, 1):
        ranks.leaves[rank].submit(request(f"left by {rank}"), JOIN)
        ranks.settle()
    for leaf in ranks.leaves:
        assert not leaf.in_flight
        assert leaf.ran[-1] == (JOIN_NAME,)
        assert {name for batch in leaf.ran[:-1] for name in batch} == {"left by 2", "left by 0", "left by 1"}
        assert leaf.last_rows == (11,)
    assert ranks.step(request("after")) == [("after",)]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_rank_hears_that_what_it_submitted_before_it_joined_cannot_run(is_known: bool) -> None:
    ranks = Ranks(3)
    gather = request("g", kind=Kind.ALLGATHER)
    if is_known:
        ranks.step(gather)
    ranks.leaves[0].submit(gather, JOIN)
    for rank in (1, 2):
        ranks.leaves[rank].submit(JOIN)
    ranks.settle()
    assert [leaf.errors.keys() for leaf in ranks.leaves] == [{"g"}, set(), set()]
    assert not any(leaf.in_flight for leaf in ranks.leaves)


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(
    "item",
    [
        request("t", op=Max),
        request("t", kind=Kind.ALLGATHER),
        request("t", kind=Kind.BROADCAST),
        request("t", kind=Kind.REDUCESCATTER),
        request("t", kind=Kind.BARRIER),
    ],
    ids=["maximum", "allgather", "broadcast", "reducescatter", "barrier"],
)
def test_what_cannot_run_without_a_rank_is_an_error_on_the_others(item: Request, is_known: bool) -> None:
    ranks = Ranks(3)
    if is_known:
        ranks.step(item)
    ranks.leaves[1].submit(JOIN)
    for rank in (0, 2):
        ranks.leaves[rank].submit(item)
    ranks.settle()
    for rank in (0, 2):
        assert "rank(s) 11 have joined" in ranks.leaves[rank].errors["t"]
        ranks.leaves[rank].submit(JOIN)
    ranks.settle()
    assert ranks.step(item) == [("t",)]


def test_a_join_does_not_stall_while_the_others_work() -> None:
    ranks = Ranks(2)
    ranks.leaves[0].submit(JOIN)
    ranks.settle()
    (before,) = ranks.negotiator.waiting().items()
    ranks.leaves[1].submit(request("t"))
    ranks.settle()
    (after,) = ranks.negotiator.waiting().items()
    assert before[1] == after[1] == ((11,), (10,))
    assert before[0] != after[0]


def test_a_message_waits_for_two_ranks_and_reaches_all() -> None:
    ranks = Ranks(4)
    message = request("m", kind=Kind.SEND, root=3, peer=1, cacheable=False)
    ranks.leaves[1].submit(message)
    ranks.settle()
    assert ranks.negotiator.waiting() == {"m": ((13,), (11,))}
    ranks.leaves[3].submit(message)
    ranks.settle()
    assert [leaf.ran for leaf in ranks.leaves] == [[("m",)]] * 4


def test_a_message_of_other_length_is_an_error_for_both_ranks_only() -> None:
    ranks = Ranks(3)
    message = request("m", kind=Kind.SEND, root=0, peer=2, cacheable=False)
    ranks.leaves[0].submit(message)
    ranks.leaves[2].submit(message._replace(shape=(4,)))
    ranks.settle()
    assert "rank 10 has [3]; rank 12 has [4]" in ranks.leaves[0].errors["m"]
    assert not any(leaf.ran for leaf in ranks.leaves)


@settings(max_examples=100)
@given(st.data())
def test_uneven_data_in_any_order(data: st.DataObject) -> None:
    """Every rank has some steps of the same tensors and then joins; whatever the timing, all run the same."""
    size = data.draw(st.integers(1, 4))
    ranks = Ranks(size, data.draw(st.integers(0, 4)))
    names = ["a", "b"]
    steps = [data.draw(st.integers(0, 4)) for _ in range(size)]
    todo = [[request(name, op=Sum) for _ in range(count) for name in names] + [JOIN] for count in steps]
    while any(todo) or any(leaf.up or leaf.down or leaf.in_flight for leaf in ranks.leaves):
        moves = [
            ("submit", rank)
            for rank, items in enumerate(todo)
            if items and items[0].name not in ranks.leaves[rank].in_flight
        ]
        moves += [("up", rank) for rank, leaf in enumerate(ranks.leaves) if leaf.up]
        moves += [("down", rank) for rank, leaf in enumerate(ranks.leaves) if leaf.down]
        moves += [("cut", 0)] if ranks.negotiator.has_agreed else []
        move, rank = data.draw(st.sampled_from(moves))
        if move == "submit":
            ranks.leaves[rank].submit(todo[rank].pop(0))
        elif move == "up":
            ranks.send_up(rank)
        elif move == "down":
            ranks.leaves[rank].take()
        else:
            ranks.cut()
    ran = [name for batch in ranks.leaves[0].ran for name in batch]
    assert all(leaf.ran == ranks.leaves[0].ran for leaf in ranks.leaves)
    assert [ran.count(name) for name in names] == [max(steps)] * 2
    assert ran[-1] == JOIN_NAME
    assert not any(leaf.errors for leaf in ranks.leaves)


@pytest.mark.parametrize("kind", [Kind.BROADCAST, Kind.GATHER, Kind.REDUCE])
def test_roots_are_named_as_users_know_them_also_without_the_joined_ranks(kind: Kind) -> None:
    ranks = Ranks(3)
    ranks.leaves[0].submit(JOIN)
    for rank in (1, 2):
        ranks.leaves[rank].submit(request("t", kind=kind, root=rank))
    ranks.settle()
    assert "the root rank of tensor 't': rank 11 has 11; rank 12 has 12" in ranks.leaves[1].errors["t"]


@pytest.mark.parametrize(
    "item",
    [
        request("other", kind=Kind.JOIN, shape=(), cacheable=False),
        request(JOIN_NAME),
        JOIN._replace(cacheable=True),
        request("m", kind=Kind.SEND, root=0, peer=1),
        request("m", kind=Kind.SEND, root=0, peer=0, cacheable=False),
        request("m", kind=Kind.SEND, root=1, peer=2, cacheable=False),
        request("m", kind=Kind.SEND, root=0, peer=3, cacheable=False),
        request("t", root=3),
        request("t", peer=1),
        request("t", splits=(1, 1, 1)),
        request("t", kind=Kind.ALLTOALL, splits=(1, 1)),
        request("t", kind=Kind.ALLTOALL, splits=(1, 1, 2)),
        request("t", kind=Kind.SCATTER, root=1),
        request("t", kind=Kind.SCATTER, splits=(3, 0)),
        request("t", kind=Kind.REDUCESCATTER, shape=()),
        request("t", kind=Kind.REDUCE, op=Adasum),
        request("t", dtype=DType.INT32, op=Adasum),
    ],
)
def test_what_no_rank_can_mean_is_a_protocol_error(item: Request) -> None:
    with pytest.raises(ProtocolError, match="rank 10 sent an invalid request for"):
        Ranks(3).negotiator.receive(0, Ready(0, 0, (item,)))
