"""Names of calls that have none from the user."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from hvdlite.engine.inflight import InFlight
from hvdlite.errors import DuplicateName
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import Kind, Ready, Request, Run, Tuning
from hvdlite.negotiation.negotiate import Negotiator
from hvdlite.negotiation.replica import Replica
from hvdlite.negotiation.unnamed import Unnamed, shown_name, signed
from hvdlite.tensors.device import Device
from hvdlite.tensors.dtypes import DType, Max, Sum
from tests.unit.replicas import request


def _entry(name: str) -> Entry:
    return Entry(Request(name, Kind.ALLREDUCE, DType.UINT8, (1,), Sum, 1.0, 1.0, 0, cacheable=False), None)


def test_tensors_of_a_call_are_counted_together() -> None:
    numbers = itertools.count()
    first, second = (Unnamed(lambda: f"call {next(numbers)}") for _ in range(2))
    assert len({first, first + "[0]", first + "[1]", second, second + "[0]"}) == 5
    assert (second + "[0]" + ".part").counted() == "call 0[0].part"
    assert [(first + "[1]").counted(), second.counted(), first.counted()] == ["call 1[1]", "call 0", "call 1"]


def test_an_entry_has_its_name_once_it_is_counted() -> None:
    in_flight = InFlight(lambda: None)
    entry = _entry(Unnamed(lambda: "call 0"))
    in_flight.submit(entry)
    assert in_flight.take_new() == [entry]
    assert in_flight.count(entry)
    assert entry.name == entry.request.name == "call 0"
    assert in_flight.all() == [entry]
    in_flight.finish([entry])
    assert not in_flight


def test_a_name_that_the_user_has_in_flight_is_refused() -> None:
    in_flight = InFlight(lambda: None)
    given, counted = _entry("call 0"), _entry(Unnamed(lambda: "call 0"))
    in_flight.submit_all([given, counted])
    in_flight.take_new()
    assert not in_flight.count(counted)
    with pytest.raises(DuplicateName, match="'call 0' is already in flight"):
        raise counted.error or AssertionError
    assert in_flight.all() == [given]


ONE = request("allreduce.noname.0", cacheable=False)
OTHERS = [
    ONE._replace(**change)
    for change in (
        {"kind": Kind.BROADCAST},
        {"dtype": DType.FLOAT64},
        {"shape": (3, 1)},
        {"shape": ()},
        {"op": Max},
        {"prescale": 0.5},
        {"postscale": 0.5},
        {"root": 1},
    )
]


def test_a_signed_name_stands_for_one_description() -> None:
    names = [signed(each).name for each in (ONE, *OTHERS)]  # type: ignore[union-attr]
    assert len(set(names)) == len(names)
    assert signed(ONE) == signed(ONE._replace(name="allreduce.noname.7"))
    assert shown_name(signed(ONE)) == "allreduce.noname"  # type: ignore[arg-type]
    assert shown_name(ONE) == ONE.name


@pytest.mark.parametrize(
    "change",
    [
        {"kind": Kind.BARRIER},
        {"kind": Kind.JOIN},
        {"kind": Kind.SEND, "peer": 1},
        {"group_length": 2},
        {"kind": Kind.ALLTOALL, "splits": (1, 2)},
        {"device": Device("cuda", 0)},
    ],
    ids=str,
)
def test_what_is_more_than_its_description_has_no_signed_name(change: dict[str, Any]) -> None:
    assert signed(ONE._replace(**change)) is None


class _Pair:
    """Two ranks and a root, which ``has_page``."""

    def __init__(self, has_page: bool, capacity: int = 1024) -> None:
        self.root = Negotiator((0, 1), capacity, Tuning(1 << 20), 256 if has_page else 0)
        self.in_flight = [InFlight(lambda: None) for _ in range(2)]
        self.replicas = [Replica(rank, self.in_flight[rank]) for rank in range(2)]
        self._counts = [itertools.count(), itertools.count()]

    def call(self, rank: int, asked: Request, waits: bool = True, may_sign: bool = True) -> Ready:
        """Submits a tensor without a name in the way of `entry_of`."""
        known = self.replicas[rank].cache.unnamed.get(asked[1:8])
        name = Unnamed(lambda: f"{asked.kind}.noname.{next(self._counts[rank])}")
        entry = Entry(asked._replace(name=name) if known is None else known.request, None)
        entry.name, entry.caller = name, int(waits)
        self.in_flight[rank].submit(entry)
        return self.replicas[rank].submit(self.in_flight[rank].take_new(), may_sign)

    def answer(self) -> None:
        run = self.root.cut()
        for replica, in_flight in zip(self.replicas, self.in_flight, strict=True):
            for work in replica.apply(run)[0]:
                in_flight.finish(work.entries)

    def learn(self, asked: Request) -> None:
        for rank in range(2):
            self.root.receive(rank, self.call(rank, asked, may_sign=False))
        self.answer()


def test_a_call_that_waits_is_a_bit_once_its_like_has_run() -> None:
    pair = _Pair(has_page=True)
    pair.learn(ONE)
    assert [pair.call(rank, ONE) for rank in range(2)] == [Ready(0, 1, ())] * 2
    assert [replica.by_bit[0].name for replica in pair.replicas] == ["allreduce.noname.1"] * 2


@pytest.mark.parametrize("why", ["is asynchronous", "another waits", "page is closed", "another was requested"])
def test_a_call_is_requested_if_its_number_may_differ(why: str) -> None:
    pair = _Pair(has_page=True)
    pair.learn(ONE)
    if why == "another waits":
        assert pair.call(0, ONE).bits == 1
    elif why == "another was requested":
        assert pair.call(0, OTHERS[0]).requests
    ready = pair.call(0, ONE, waits=why != "is asynchronous", may_sign=why != "page is closed")
    assert ready.bits == 0
    assert [each.cacheable for each in ready.requests] == [False]


def test_a_closing_requests_what_was_a_bit_and_after_some_of_them_no_call_is_one() -> None:
    pair = _Pair(has_page=True)
    pair.learn(ONE)
    replica = pair.replicas[0]
    for turn in range(1, 4):
        assert pair.call(0, ONE).bits == 1
        again = replica.unanswered()
        assert again.bits == 0
        assert again.requests == (ONE._replace(name=f"allreduce.noname.{turn}"),)
        assert replica.unanswered() == Ready(0, 0, ())
        pair.in_flight[0].finish([replica._by_name.pop(again.requests[0].name)])
    assert pair.call(0, ONE).requests


def test_the_page_is_closed_for_ranks_that_make_different_calls() -> None:
    pair = _Pair(has_page=True)
    root = pair.root
    pair.learn(ONE)
    pair.learn(OTHERS[0])
    assert not root.must_close(True, lambda: [1, 0])
    assert not root.must_close(True, lambda: [1, 1])
    assert not root.has_stale
    root.receive(1, Ready(0, 0, (request("allreduce.noname.2", cacheable=False),)))
    assert root.has_stale
    assert not root.must_close(False, lambda: [0, 0])
    assert root.must_close(True, lambda: [1, 0])
    pair = _Pair(has_page=True)
    pair.learn(ONE)
    pair.learn(OTHERS[0])
    assert pair.root.must_close(True, lambda: [1, 2])


def test_only_some_descriptions_are_remembered_and_none_without_a_page() -> None:
    pair = _Pair(has_page=True)
    for length in range(80):
        pair.learn(ONE._replace(shape=(length,)))
    assert [len(replica.cache.unnamed) for replica in pair.replicas] == [64, 64]
    assert pair.root.signed == (1 << 64) - 1
    pair = _Pair(has_page=False)
    pair.learn(ONE)
    assert not pair.replicas[0].cache.unnamed


def test_a_name_of_the_user_that_looks_like_a_number_is_not_signed() -> None:
    pair = _Pair(has_page=True)
    pair.root.receive(0, pair.call(0, ONE))
    pair.in_flight[1].submit(Entry(request("allreduce.noname.0"), None))
    pair.root.receive(1, pair.replicas[1].submit(pair.in_flight[1].take_new(), True))
    run: Run = pair.root.cut()
    assert run.bits == 0
    assert pair.root.signed == 0
