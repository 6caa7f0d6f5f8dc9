"""One rank's side of the negotiation: what goes up to the root, and what its decisions come to on this rank."""

from __future__ import annotations

import pytest

from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import JOIN_NAME, Batch, Kind, Ready, Request, Response, Run
from hvdlite.negotiation.replica import Replica
from hvdlite.negotiation.unnamed import Counters, Unnamed
from hvdlite.negotiation.wire import ProtocolError
from tests.unit.replicas import InFlight, group, request

JOIN = request(JOIN_NAME, kind=Kind.JOIN, shape=(), cacheable=False)


class Rank:
    """A replica whose entries never finish, so that a test can look at all of them."""

    def __init__(self, rank: int = 1) -> None:
        self.entries = InFlight()
        self.replica = Replica(rank, self.entries)

    def submit(self, *requests: Request) -> Ready:
        self.entries.update({each.name: Entry(each, None) for each in requests})
        return self.replica.submit([self.entries[each.name] for each in requests])

    def remember(self, *requests: Request, generation: int = 0) -> None:
        """Makes all ranks agree about ``requests``, whose bits count from 0."""
        self.submit(*requests)
        responses = tuple(Response(each.name, "", (), bit) for bit, each in enumerate(requests))
        works, _ = self.replica.apply(Run(generation, (Batch(0, responses),)))
        assert [entry.name for entry in works[0].entries] == [each.name for each in requests]


def test_what_is_remembered_goes_up_as_a_bit_and_what_changed_as_a_request() -> None:
    rank = Rank()
    assert rank.submit(request("a"), request("b")) == Ready(0, 0, (request("a"), request("b")))
    rank.remember(request("a"), request("b"), request("c"))
    other = request("b", shape=(4,))
    assert rank.submit(request("a"), other, request("c"), request("d")) == Ready(0, 0b101, (other, request("d")))


def test_what_has_no_name_gets_one_on_its_way_up_unless_that_is_in_flight() -> None:
    rank = Rank()
    counters, free, taken = Counters(), "allreduce.noname.0", "allreduce.noname.1"
    unnamed = [request(Unnamed((Kind.ALLREDUCE,), counters), cacheable=False) for _ in range(2)]
    assert rank.submit(request(taken), *unnamed) == Ready(0, 0, (request(taken), request(free, cacheable=False)))
    works, _ = rank.replica.apply(Run(0, (Batch(0, (Response(free, "", (), -1),)),)))
    assert [(work.entries, work.rows, work.number) for work in works] == [([rank.entries[free]], [()], 1)]


def test_a_batch_has_the_remembered_tensors_by_their_bits_and_then_the_new_ones() -> None:
    rank = Rank()
    rank.remember(request("a"), request("b"))
    rank.submit(request("b"), request("new"), request("a"))
    works, mismatches = rank.replica.apply(Run(0, (Batch(0b11, (Response("new", "", (3, 3), 2),)),)))
    assert [[entry.name for entry in work.entries] for work in works] == [["a", "b", "new"]]
    assert [entry for work in works for entry in work.entries] == [rank.entries[name] for name in ("a", "b", "new")]
    assert works[0].rows == [(), (), (3, 3)]
    assert mismatches == []
    assert not rank.replica.by_bit


def test_a_new_generation_forgets_every_bit() -> None:
    rank = Rank()
    rank.remember(request("a"))
    rank.submit(request("a"))
    rank.remember(request("b"), generation=1)
    assert rank.submit(request("a"), request("b")) == Ready(1, 1, (request("a"),))
    assert list(rank.replica.by_bit.values()) == [rank.entries["b"]]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_mismatch_fails_the_ranks_that_submitted_the_tensor_and_no_others(is_known: bool) -> None:
    for number, fails in ((1, True), (2, False)):
        rank = Rank(number)
        rank.remember(request("t"))
        rank.submit(request("t", shape=(3,) if is_known else (5,)))
        works, mismatches = rank.replica.apply(
            Run(0, (Batch(0, (Response("t", "ranks disagree", (0, 1), 0, request("t")),)),))
        )
        assert works == []
        assert mismatches == ([(rank.entries["t"], "ranks disagree")] if fails else [])
        assert bool(rank.replica.by_bit) == (is_known and not fails)


@pytest.mark.parametrize("bit", [-1, 0])
def test_a_rank_that_has_joined_takes_no_part_in_a_name_that_it_once_submitted(bit: int) -> None:
    """The ranks that have data may submit a name again while this rank still runs the batch with its own tensor."""
    rank = Rank()
    rank.submit(request("a"))
    rank.submit(JOIN)
    ran, again = request("a"), request("a", shape=(40,))
    works, _ = rank.replica.apply(Run(0, (Batch(0, (Response("a", "", (), bit, ran),)),)))
    assert works[0].entries == [rank.entries["a"]]
    works, _ = rank.replica.apply(Run(0, (Batch(0, (Response("a", "", (), bit, again),)),)))
    (entry,) = works[0].entries
    assert (entry.request, entry.nbytes, entry.group, entry.source) == (again, 160, None, 0)


def test_a_list_goes_up_as_a_whole_and_before_a_join() -> None:
    rank = Rank()
    first, second, third = group("g", 3)
    rank.remember(request("a"), second, first)
    known = rank.submit(request("a"), first, second)
    assert known == Ready(0, 0b111, ())
    rank.replica.apply(Run(0, (Batch(0b111, ()),)))
    ready = rank.submit(request("a"), first, second, third, JOIN)
    assert ready == Ready(0, 0b1, (first, second, third, JOIN))
    assert rank.replica.unanswered() == Ready(0, 0b1, ())


def test_a_blank_tensor_of_a_list_stays_blank_when_it_is_requested() -> None:
    rank = Rank()
    first, second = group("g", 2)
    rank.remember(first)
    for each in (first, second):
        rank.entries[each.name] = Entry(each, None)
    rank.entries["g[0]"].is_blank = True
    ready = rank.replica.submit([rank.entries["g[1]"], rank.entries["g[0]"]])
    assert ready == Ready(0, 0, (first, second), 0, 0b1)


def test_a_rank_that_has_joined_adds_zeros_to_sums_and_nothing_to_what_others_move() -> None:
    rank = Rank()
    rank.remember(request("known"))
    rank.submit(JOIN)
    new, sent = request("new", shape=(5,)), request("m", kind=Kind.SEND, root=0, peer=2, cacheable=False)
    responses = (Response("new", "", (), 1, new), Response("m", "", (), -1, sent))
    works, _ = rank.replica.apply(Run(0, (Batch(1, responses[:1]), Batch(0, responses[1:]))))
    (known, other), (message,) = works[0].entries, works[1].entries
    assert (known.name, other.name, message.name) == ("known", "new", "m")
    assert (known.nbytes, other.nbytes, message.nbytes) == (12, 20, 0)
    assert {(each.source, each.target, each.owner) for each in (known, other, message)} == {(0, 0, None)}
    assert rank.submit(new) == Ready(0, 0b10, ())  # remembered, although this rank did not submit it then


@pytest.mark.parametrize(
    "batch",
    [Batch(0b1, ()), Batch(0b10, ()), Batch(0, (Response("b", "", (), 1),)), Batch(0, (Response("b", "no", (), -1),))],
    ids=["remembered", "unknown bit", "name", "mismatch"],
)
def test_a_decision_about_what_this_rank_did_not_submit_is_refused(batch: Batch) -> None:
    rank = Rank()
    rank.remember(request("a"))
    with pytest.raises(ProtocolError, match="which this rank did not submit"):
        rank.replica.apply(Run(0, (batch,)))
