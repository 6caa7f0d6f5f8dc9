"""The news of hosts, gathered by their first ranks: all ranks still run the same, and nothing waits for a timer."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hvdlite.negotiation.aggregate import Aggregator
from hvdlite.negotiation.messages import Batch, Kind, News, Ready, Response, Run
from tests.unit.hosts import RanksOnHosts
from tests.unit.replicas import request

NAMES = "abcdef"


@settings(max_examples=60)
@given(st.data(), st.lists(st.integers(1, 3), min_size=1, max_size=3), st.booleans())
def test_ranks_never_differ_and_nothing_is_held_for_ever(data: st.DataObject, sizes: list[int], releases: bool) -> None:
    job = RanksOnHosts(sizes, data.draw(st.integers(0, 4)), data.draw(st.sampled_from([0, 24, 1 << 20])))
    leaves = job.ranks.leaves
    everywhere: dict[str, list[bool]] = {}
    for _ in range(data.draw(st.integers(1, 5))):
        names = data.draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
        gathers = data.draw(st.sets(st.sampled_from(names)))
        for items in job.todo:
            for name in data.draw(st.permutations(names)):
                rows = data.draw(st.integers(0, 2)) if name in gathers else 3
                kind = Kind.ALLGATHER if name in gathers else Kind.ALLREDUCE
                items.append((request(name, kind=kind, shape=(rows,)),))
        blank = data.draw(st.lists(st.sets(st.sampled_from(names)), min_size=len(leaves), max_size=len(leaves)))
        for items, lacking, own in zip(job.todo, blank, job.blank, strict=True):
            own += [{each.name for each in item} & lacking for item in items]
        for name in names:
            everywhere.setdefault(name, []).append(all(name in lacking for lacking in blank))
        job.run(data, releases)
    job.check_all_alike()
    assert [leaf.blank for leaf in leaves] == [everywhere] * len(leaves)
    assert not any(leaf.errors for leaf in leaves)


def known(aggregator: Aggregator, *bits: int) -> None:
    """The ranks have asked for tensors, and these bits are what they were answered."""
    names = [f"t{bit}" for bit in bits]
    for rank in (4, 5, 6):
        aggregator.receive(rank, Ready(0, 0, tuple(map(request, names))))
    responses = tuple(Response(name, "", (), bit) for name, bit in zip(names, bits, strict=True))
    aggregator.decide(Run(0, (Batch(0, responses),)))


def test_what_all_ranks_have_goes_up_once() -> None:
    aggregator = Aggregator((4, 5, 6))
    known(aggregator, 0, 1)
    assert aggregator.receive(5, Ready(0, 0b11, ())) == []
    assert aggregator.receive(4, Ready(0, 0b01, ())) == []
    assert aggregator.receive(6, Ready(0, 0b11, ())) == [News((4, 5, 6), Ready(0, 0b01, ()))]
    assert aggregator.receive(4, Ready(0, 0b10, ())) == [News((5, 6, 4), Ready(0, 0b10, ()))]
    assert not aggregator.is_waiting


def test_what_was_released_and_failed_is_ready_again_when_all_ranks_have_it() -> None:
    aggregator = Aggregator((4, 5, 6))
    known(aggregator, 0)
    other = request("t0", shape=(9,))
    assert aggregator.receive(5, Ready(0, 1, ())) == []
    asked = News((4,), Ready(0, 0, (other,)))
    assert aggregator.receive(4, Ready(0, 0, (other,))) == [News((5,), Ready(0, 1, ())), asked]
    aggregator.decide(Run(0, (Batch(0, (Response("t0", "ranks disagree", (), 0),)),)))
    assert aggregator.receive(4, Ready(0, 1, ())) == aggregator.receive(6, Ready(0, 1, ())) == []
    assert aggregator.receive(5, Ready(0, 1, ())) == [News((4, 6, 5), Ready(0, 1, ()))]


def test_what_was_released_is_completed_by_those_who_come_late() -> None:
    aggregator = Aggregator((4, 5, 6))
    known(aggregator, 0)
    assert aggregator.receive(5, Ready(0, 1, ())) == []
    assert aggregator.release() == [News((5,), Ready(0, 1, ()))]
    assert aggregator.receive(4, Ready(0, 1, ())) == []
    assert aggregator.receive(6, Ready(0, 1, ())) == [News((4,), Ready(0, 1, ())), News((6,), Ready(0, 1, ()))]
    aggregator.decide(Run(0, (Batch(1, ()),)))
    assert [aggregator.receive(rank, Ready(0, 1, ())) for rank in (4, 5)] == [[], []]
    assert aggregator.receive(6, Ready(0, 1, ())) == [News((4, 5, 6), Ready(0, 1, ()))]


def test_a_request_goes_up_behind_all_that_was_held_and_with_the_bits_of_its_rank() -> None:
    aggregator = Aggregator((4, 5, 6))
    known(aggregator, 0)
    assert aggregator.receive(4, Ready(0, 1, ())) == []
    asked = request("new")
    assert aggregator.receive(5, Ready(0, 1, (asked,))) == [
        News((4,), Ready(0, 1, ())),
        News((5,), Ready(0, 1, (asked,))),
    ]
