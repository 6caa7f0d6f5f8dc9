"""The negotiator and groups of different lengths: all ranks hear of it, and nothing of them is left to wait."""

from __future__ import annotations

import pytest

from hvdlite.members.ranges import named
from hvdlite.negotiation.messages import JOIN_NAME, Kind, Ready, Request, Tuning
from hvdlite.negotiation.negotiate import Negotiator
from hvdlite.negotiation.wire import ProtocolError
from hvdlite.tensors.dtypes import DType
from tests.unit.replicas import Ranks, group, request

KNOWN = {
    "new": [],
    "short known": [2],
    "long known": [4],
    "short known last": [4, 2],
    "long known last": [2, 4],
}


def _errors(ranks: Ranks) -> list[dict[str, str]]:
    """Returns the errors of every rank since the last call; nothing may be left in flight, or at the root."""
    told = [dict(leaf.errors) for leaf in ranks.leaves]
    for leaf in ranks.leaves:
        assert not leaf.in_flight
        assert not leaf.replica.by_bit
        leaf.errors.clear()
    assert not ranks.negotiator.is_waiting
    return told


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("cacheable", [True, False])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_rank_hears_the_same_of_all_tensors(known: list[int], cacheable: bool, size: int) -> None:
    ranks = Ranks(size)
    for odd in range(size):
        for length in known:
            ranks.step(*group("x", length, cacheable=cacheable))
        for rank, leaf in enumerate(ranks.leaves):
            leaf.ran.clear()
            leaf.submit(*group("x", 2 if rank == odd else 4, cacheable=cacheable), request("beside"))
        ranks.settle()
        assert [leaf.ran for leaf in ranks.leaves] == [[("beside",)]] * size
        told = _errors(ranks)
        text = told[0]["x[0]"]
        for rank in range(size):
            assert told[rank] == {f"x[{number}]": text for number in range(2 if rank == odd else 4)}
        assert text.startswith("ranks disagree about the number of tensors in group 'x': ")
        assert f"rank {10 + odd} has 2" in text
        assert named(10 + rank for rank in range(size) if rank != odd) + " ha" in text
        for length in (2, 4):
            names = {name for batch in ranks.step(*group("x", length, cacheable=cacheable)) for name in batch}
            assert names == {f"x[{number}]" for number in range(length)}


def test_every_length_is_named() -> None:
    ranks = Ranks(4)
    for leaf, length in zip(ranks.leaves, (3, 1, 2, 3), strict=True):
        leaf.submit(*group("a [b]", length))
    ranks.settle()
    text = (
        "ranks disagree about the number of tensors in group 'a [b]': ranks 10, 13 have 3; rank 11 has 1; "
        "rank 12 has 2. Submit the same on every rank."
    )
    told = _errors(ranks)
    assert told == [{f"a [b][{number}]": text for number in range(length)} for length in (3, 1, 2, 3)]


@pytest.mark.parametrize("known", [[], [0], [3], [0, 3], [3, 0]])
@pytest.mark.parametrize("size", [2, 3])
def test_a_group_without_tensors_has_none(known: list[int], size: int) -> None:
    ranks = Ranks(size)
    for odd in range(size):
        for length in known:
            ranks.step(*group("x", length))
        for rank, leaf in enumerate(ranks.leaves):
            leaf.submit(*group("x", 0 if rank == odd else 3))
        ranks.settle()
        told = _errors(ranks)
        assert [len(each) for each in told] == [1 if rank == odd else 3 for rank in range(size)]
        (text,) = {text for each in told for text in each.values()}
        assert f"rank {10 + odd} has 0" in text
        for length in (0, 3):
            assert len(ranks.step(*group("x", length))) == 1


@pytest.mark.parametrize("change", [dict(dtype=DType.FLOAT64), dict(kind=Kind.ALLGATHER), dict(shape=(4,))])
def test_the_length_is_told_before_anything_else(change: dict[str, object]) -> None:
    ranks = Ranks(2)
    ranks.leaves[0].submit(*group("x", 3))
    ranks.leaves[1].submit(*group("x", 2, **change))
    ranks.settle()
    ours, theirs = _errors(ranks)
    assert ours.keys() == {"x[0]", "x[1]", "x[2]"}
    assert theirs.keys() == {"x[0]", "x[1]"}
    assert len({*ours.values(), *theirs.values()}) == 1
    assert "group 'x': rank 10 has 3; rank 11 has 2." in ours["x[2]"]


def test_a_tensor_outside_of_the_group_is_not_one_of_it() -> None:
    ranks = Ranks(3)
    for leaf, requests in zip(ranks.leaves, (group("x", 2), group("x", 2), (request("x[0]"),)), strict=True):
        leaf.submit(*requests)
    ranks.settle()
    told = _errors(ranks)
    assert [each.keys() for each in told] == [{"x[0]", "x[1]"}] * 2 + [{"x[0]"}]
    assert "group 'x': ranks 10, 11 have 2; rank 12 has a tensor 'x[0]' outside of it." in told[0]["x[1]"]


@pytest.mark.parametrize("is_known", [False, True])
def test_other_tensors_go_on_waiting(is_known: bool) -> None:
    others = (*group("xx", 2), *group("x[0]", 2), request("x"), request("x[7]"))
    ranks = Ranks(2)
    if is_known:
        ranks.step(*others)
    ranks.leaves[0].submit(*others, *group("x", 2))
    ranks.leaves[1].submit(*group("x", 3))
    ranks.settle()
    assert ranks.negotiator.waiting() == {each.name: ((11,), (10,)) for each in others}
    ranks.leaves[1].submit(*others)
    ranks.settle()
    assert [told.keys() for told in _errors(ranks)] == [{"x[0]", "x[1]"}, {"x[0]", "x[1]", "x[2]"}]


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("joins_last", [False, True])
def test_a_rank_that_has_joined_hears_nothing(known: list[int], joins_last: bool) -> None:
    ranks = Ranks(3)
    for length in known:
        ranks.step(*group("x", length))
    join = request(JOIN_NAME, kind=Kind.JOIN, shape=(), cacheable=False)
    steps = [(1, (join,)), (0, group("x", 4)), (2, group("x", 2))]
    for rank, requests in steps[1:] + steps[:1] if joins_last else steps:
        ranks.leaves[rank].submit(*requests)
        ranks.settle()
    assert [list(leaf.in_flight) for leaf in ranks.leaves] == [[], [JOIN_NAME], []]
    assert [len(leaf.errors) for leaf in ranks.leaves] == [4, 0, 2]
    for rank in (0, 2):
        assert all("rank 10 has 4; rank 12 has 2" in text for text in ranks.leaves[rank].errors.values())
        ranks.leaves[rank].submit(*group("x", 3))
    ranks.settle()
    assert not ranks.leaves[0].in_flight
    assert not ranks.leaves[2].in_flight


@pytest.mark.parametrize(
    "change",
    [dict(name="x[1]"), dict(name="[0"), dict(name="0]"), dict(kind=Kind.ALLGATHER), dict(shape=(1,)), dict(shape=())],
)
def test_what_cannot_be_an_empty_group_is_refused(change: dict[str, object]) -> None:
    (impossible,) = (each._replace(**change) for each in group("x", 0))
    with pytest.raises(ProtocolError, match="sent an invalid request for"):
        Negotiator(range(2), 8, Tuning(8)).receive(1, Ready(0, 0, (impossible,)))


@pytest.mark.parametrize("name", ["x", "x[2]", "x[-1]", "x[]", "x[1", "x1]", "x[\u00b2]", "[x]"])
def test_what_cannot_be_in_a_group_is_refused(name: str) -> None:
    impossible: Request = request(name, group_length=2)
    with pytest.raises(ProtocolError, match="sent an invalid request for"):
        Negotiator(range(2), 8, Tuning(8)).receive(1, Ready(0, 0, (impossible,)))
