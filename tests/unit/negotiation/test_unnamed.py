"""Names of calls that have none from the user."""

from __future__ import annotations

import itertools
import sys
from types import FrameType
from typing import Any

import pytest

from hvdlite.engine.inflight import InFlight
from hvdlite.errors import DuplicateName
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import Common, Kind, Ready, Request, Tuning
from hvdlite.negotiation.negotiate import Negotiator
from hvdlite.negotiation.replica import Replica, is_last_of_a_while
from hvdlite.negotiation.unnamed import Counters, Unnamed, may_be_signed, signed
from hvdlite.tensors.device import Device
from hvdlite.tensors.dtypes import DType, Max, Sum
from tests.unit.replicas import request


def _entry(name: str) -> Entry:
    return Entry(Request(name, Kind.ALLREDUCE, DType.UINT8, (1,), Sum, 1.0, 1.0, 0, cacheable=False), None)


def _unnamed(counters: Counters) -> Unnamed:
    return Unnamed((Kind.ALLREDUCE,), counters)


def test_tensors_of_a_call_are_counted_together() -> None:
    counters = Counters()
    first, second = _unnamed(counters), _unnamed(counters)
    assert len({first, first + "[0]", first + "[1]", second, second + "[0]"}) == 5
    assert (second + "[0]" + ".part").counted() == "allreduce.noname.0[0].part"
    assert (first + "[1]").counted() == "allreduce.noname.1[1]"
    assert [second.counted(), first.counted()] == ["allreduce.noname.0", "allreduce.noname.1"]


def test_counters_are_apart_and_begin_again_after_a_join() -> None:
    counters = Counters()
    late = _unnamed(counters)
    before = late.epoch
    assert Unnamed((Kind.ALLREDUCE, "part"), counters, "part.").counted() == "part.allreduce.noname.0"
    assert _unnamed(counters).counted() == "allreduce.noname.0"
    counters.restart()
    assert counters.epoch.joins == 1
    assert _unnamed(counters).counted() == "allreduce.noname.1.0"
    assert late.counted(before) == "allreduce.noname.1"


def test_a_call_that_is_interrupted_while_it_is_counted_is_counted_once() -> None:
    """The interrupt comes at each bytecode in turn."""
    for when in itertools.count(1):
        counters = Counters()
        unnamed, left = _unnamed(counters), when

        def interrupt(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            frame.f_trace_opcodes = True
            if event == "opcode":
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return interrupt

        sys.settrace(interrupt)
        try:
            unnamed.counted()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert unnamed.counted() == "allreduce.noname.0"
        assert _unnamed(counters).counted() == "allreduce.noname.1"
        if left > 0:
            assert when > 40
            return


def test_an_entry_has_its_name_once_it_is_counted() -> None:
    in_flight = InFlight(lambda: None)
    entry = _entry(_unnamed(Counters()))
    in_flight.submit(entry)
    assert in_flight.take_new() == [entry]
    assert in_flight.count(entry)
    assert entry.name == entry.request.name == "allreduce.noname.0"
    assert in_flight.all() == [entry]
    in_flight.finish([entry])
    assert not in_flight


def test_a_name_that_the_user_has_in_flight_is_refused() -> None:
    in_flight = InFlight(lambda: None)
    given, counted = _entry("allreduce.noname.0"), _entry(_unnamed(Counters()))
    in_flight.submit_all([given, counted])
    in_flight.take_new()
    assert not in_flight.count(counted)
    with pytest.raises(DuplicateName, match="'allreduce.noname.0' is already in flight"):
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
    names = [signed(each).name for each in (ONE, *OTHERS)]
    assert len(set(names)) == len(names)
    assert all(map(may_be_signed, (ONE, *OTHERS)))
    assert signed(ONE) == signed(ONE._replace(name="allreduce.noname.7"))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": Kind.BARRIER},
        {"kind": Kind.JOIN},
        {"kind": Kind.SEND, "peer": 1},
        {"group_length": 2},
        {"kind": Kind.ALLTOALL, "splits": (1, 2)},
    ],
    ids=str,
)
def test_what_is_more_than_its_description_has_no_signed_name(change: dict[str, Any]) -> None:
    assert not may_be_signed(ONE._replace(**change))


class _Pair:
    """Two ranks and a root, which ``has_page``."""

    def __init__(self, has_page: bool = True) -> None:
        self.root = Negotiator((0, 1), 1024, Tuning(1 << 20), 256 if has_page else 0)
        self.in_flight = [InFlight(lambda: None) for _ in range(2)]
        self.replicas = [Replica(rank, self.in_flight[rank]) for rank in range(2)]
        self._counters = [Counters(), Counters()]

    def _entry(self, rank: int, asked: Request) -> Entry:
        """As `entry_of` makes it."""
        known = self.replicas[rank].cache.unnamed.get(asked[1:8])
        name = Unnamed((asked.kind,), self._counters[rank])
        entry = Entry(asked._replace(name=name) if known is None else known.request, None)
        entry.name = name
        return entry

    def request(self, rank: int, asked: Request) -> Ready:
        entry = self._entry(rank, asked)
        self.in_flight[rank].submit(entry)
        return self.replicas[rank].submit(self.in_flight[rank].take_new())

    def leave_call(self, rank: int, asked: Request) -> Entry:
        """A call that has submitted its bit, and that a turn takes over."""
        entry, replica = self._entry(rank, asked), self.replicas[rank]
        assert self.in_flight[rank].enter_alone([entry])
        replica.adopt(replica.cache.known[entry.request.name].bit, entry)
        return entry

    def answer(self) -> None:
        run = self.root.cut()
        for replica, in_flight in zip(self.replicas, self.in_flight, strict=True):
            for work in replica.apply(run)[0]:
                in_flight.finish(work.entries)

    def learn(self, asked: Request) -> None:
        for rank in range(2):
            self.root.receive(rank, self.request(rank, asked))
        self.answer()


def test_what_has_run_without_a_name_is_known_by_its_description_and_requested_by_its_number() -> None:
    pair = _Pair()
    pair.learn(ONE)
    assert [list(replica.cache.unnamed) for replica in pair.replicas] == [[ONE[1:8]]] * 2
    ready = pair.request(0, ONE)
    assert ready == Ready(0, 0, (ONE._replace(name="allreduce.noname.1"),))


def test_a_call_that_is_left_has_its_number_and_its_bit_runs_it() -> None:
    pair = _Pair()
    pair.learn(ONE)
    entries = [pair.leave_call(rank, ONE) for rank in range(2)]
    assert [entry.name for entry in entries] == ["allreduce.noname.1"] * 2
    for replica, entry in zip(pair.replicas, entries, strict=True):
        (work,), _ = replica.apply(Common(0b1, 0, 0))
        assert work.entries == [entry]


def test_a_closing_requests_what_was_a_bit_and_after_some_in_a_row_no_call_is_one() -> None:
    for may_go_on in (True, False):
        pair = _Pair()
        pair.learn(ONE)
        replica = pair.replicas[0]
        for turn in range(1, 4):
            pair.leave_call(0, ONE)
            again = replica.unanswered()
            assert again == Ready(0, 0, (ONE._replace(name=f"allreduce.noname.{turn}"),))
            assert replica.unanswered() == Ready(0, 0, ())
            pair.in_flight[0].finish([replica._by_name.pop(again.requests[0].name)])
            if may_go_on:
                replica.signed_in_vain = 0  # as a call that is done
        assert bool(replica.cache.unnamed) is may_go_on
        replica.cache.remember(1, signed(OTHERS[0]), ())
        assert len(replica.cache.unnamed) == 2 * may_go_on


def test_ranks_that_request_all_calls_try_bits_again_after_the_same_batches() -> None:
    pair = _Pair()
    pair.learn(ONE)
    tried = []
    for _ in range(2, 10):
        for replica in pair.replicas:
            replica.cache.forget_unnamed()
            replica.signed_in_vain = 3
        pair.learn(ONE)
        again = [list(replica.cache.unnamed) for replica in pair.replicas]
        assert again in ([[], []], [[ONE[1:8]], [ONE[1:8]]])
        if again[0]:
            tried += [replica.batches for replica in pair.replicas if replica.signed_in_vain == 0]
    assert tried == [2, 2, 4, 4, 8, 8]
    assert [batches for batches in range(4096, 20000) if is_last_of_a_while(batches)] == [4096, 8192, 12288, 16384]


def test_a_call_whose_number_the_user_has_in_flight_keeps_its_bit_and_fails_at_a_closing() -> None:
    pair = _Pair()
    pair.learn(ONE)
    entry = pair._entry(0, ONE)
    assert pair.in_flight[0].enter_alone([entry])
    pair.in_flight[0].submit(_entry("allreduce.noname.1"))
    pair.replicas[0].adopt(0, entry)
    assert pair.replicas[0].by_bit == {0: entry}
    assert pair.replicas[0].unanswered() == Ready(0, 0, ())
    assert isinstance(entry.error, DuplicateName)


def test_the_page_is_closed_for_ranks_that_make_different_calls() -> None:
    pair = _Pair()
    root = pair.root
    pair.learn(ONE)
    assert not root.must_close(lambda: pytest.fail("nothing is requested, so the page is not read"))
    assert not root.has_stale
    root.receive(1, Ready(0, 0, (request("allreduce.noname.2", cacheable=False),)))
    assert root.has_stale
    assert not root.must_close(lambda: 0)
    assert root.must_close(lambda: 1)
    pair = _Pair()
    pair.learn(ONE)
    pair.root.doubt()
    assert not pair.root.must_close(lambda: 0)  # it has run
    pair.root.doubt()
    assert pair.root.must_close(lambda: 1)


def test_a_tensor_on_a_device_is_not_signed_but_may_be_what_another_rank_submits_by_its_bit() -> None:
    pair = _Pair()
    pair.learn(ONE)
    gpu = ONE._replace(name="allreduce.noname.1", device=Device("cuda", 0))
    pair.root.receive(0, Ready(0, 0, (gpu,)))
    assert pair.root.has_stale
    pair.root.receive(1, Ready(0, 0, (gpu,)))
    assert pair.root.cut().batches[0].responses[0].bit == -1
    assert not pair.root.has_stale


def test_messages_between_two_ranks_and_joins_close_no_page() -> None:
    pair = _Pair()
    pair.learn(ONE)
    send = request("send.noname.0", kind=Kind.SEND, cacheable=False, root=0, peer=1)
    pair.root.receive(0, Ready(0, 0, (send,)))
    assert not pair.root.has_stale


def test_only_some_descriptions_are_remembered() -> None:
    pair = _Pair()
    for length in range(80):
        pair.learn(ONE._replace(shape=(length,)))
    assert [len(replica.cache.unnamed) for replica in pair.replicas] == [64, 64]
    assert pair.root.signed == (1 << 64) - 1
    pair = _Pair(has_page=False)
    pair.learn(ONE)
    assert not pair.replicas[0].cache.unnamed


def test_a_name_of_the_user_that_looks_like_a_number_is_not_signed() -> None:
    pair = _Pair()
    pair.root.receive(0, pair.request(0, ONE))
    pair.in_flight[1].submit(Entry(request("allreduce.noname.0"), None))
    pair.root.receive(1, pair.replicas[1].submit(pair.in_flight[1].take_new()))
    assert pair.root.cut().bits == 0
    assert pair.root.signed == 0
