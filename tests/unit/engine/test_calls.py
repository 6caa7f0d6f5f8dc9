"""What other threads do between the steps of a call, which a page that does it shows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest

from hvdlite import native
from hvdlite.engine.batch import collect
from hvdlite.engine.calls import Calls
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.errors import HorovodInternalError, ShutDown
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import Kind, Request
from hvdlite.negotiation.replica import Replica, Work
from hvdlite.negotiation.unnamed import Counters, Unnamed, signed
from hvdlite.tensors.buffer import address_of
from tests.unit.replicas import group, request


class Rank:
    """Calls of one rank that knows the tensor "a", in a page on which ``meanwhile`` happens, with what it returns."""

    def __init__(self, meanwhile: Callable[[Rank], int]) -> None:
        self.page: Any = SimpleNamespace(
            version=1,
            size=2,
            names=64,
            most_bytes=1024,
            most_bytes_alone=512,
            most_bytes_shared=0,
            rank=0,
            call=SimpleNamespace(outcome=native.CALL_REFUSED),
            calls=1,
            stage=lambda nbytes: None,
            prepare=self._prepare,
            run=lambda: meanwhile(self),
            times=(1.0, 2.0),
            report=self._report,
            adopt=self._adopt,
        )
        self.is_left = False
        self.told: list[tuple[Any, ...]] = []
        self.wake = Mock()
        self.in_flight = InFlight(self.wake)
        self.replica = Replica(0, self.in_flight)
        self.request = request("a")
        self.replica.cache.remember(3, self.request, ())
        self.observer = Observer(self.in_flight, [0, 1])
        self.calls = Calls(
            self.page, self.in_flight, self.replica, self.observer, lambda *told: self.told.append(told), self.wake
        )

    def _prepare(self, *arguments: int) -> None:
        self.prepared = arguments
        self.page.call.outcome = native.CALL_REFUSED

    def _adopt(self) -> bool:
        is_left, self.is_left = self.is_left, False
        return is_left

    def _report(self) -> tuple[Any, ...]:
        first_at, last_at = self.page.times
        return 2, self.page.calls, first_at, last_at, 1, 0, first_at, last_at, last_at - first_at

    def entry(self, of: Request | None = None) -> Entry[Any]:
        array = np.ones(3, np.float32)
        return Entry(of or self.request, None, address_of(array), address_of(array), array.nbytes, array)

    def group(self, length: int) -> list[Entry[Any]]:
        """The entries of a group that is known, whose bits descend."""
        requests = group("g", length)
        for number, each in enumerate(requests):
            self.replica.cache.remember(20 - number, each, ())
        return [self.entry(each) for each in requests]

    def end(self) -> None:
        """The group ends."""
        self.in_flight.end(ShutDown(1, "it left"))
        self.in_flight.finish(self.in_flight.all(), ShutDown(1, "it left"))

    def leave(self) -> int:
        self.page.call.outcome = native.CALL_LEFT
        self.is_left = True
        return native.CALL_LEFT


def test_a_turn_takes_over_a_call_that_was_left_before_its_thread_sees_that() -> None:
    def meanwhile(rank: Rank) -> int:
        outcome = rank.leave()
        rank.calls.settle()
        rank.page.call.outcome = native.CALL_REFUSED  # the call of another thread has begun
        return outcome

    rank = Rank(meanwhile)
    entry = rank.entry()
    assert rank.calls.run((entry,))
    assert not entry.is_done
    assert rank.replica.by_bit == {3: entry}
    assert rank.in_flight.all() == [entry]


def test_a_turn_adopts_no_call_that_has_not_begun() -> None:
    def meanwhile(rank: Rank) -> int:
        rank.page.call.outcome = native.CALL_LEFT  # of an earlier call, which has been adopted
        rank.calls.settle()
        return native.CALL_DONE

    rank = Rank(meanwhile)
    entry = rank.entry()
    assert rank.calls.run((entry,))
    assert entry.is_done
    assert not rank.replica.by_bit


def test_a_call_that_was_done_before_the_group_ended_has_a_result() -> None:
    def meanwhile(rank: Rank) -> int:
        rank.end()
        return native.CALL_DONE

    rank = Rank(meanwhile)
    entry = rank.entry()
    assert rank.calls.run((entry,))
    assert (entry.is_done, entry.error) == (True, None)
    assert not rank.calls.run((rank.entry(),))  # the group has ended
    with pytest.raises(HorovodInternalError):
        rank.in_flight.submit(rank.entry())


def test_a_call_that_was_done_before_the_group_ended_has_a_result_that_it_allocated() -> None:
    def meanwhile(rank: Rank) -> int:
        rank.end()
        return native.CALL_DONE

    rank = Rank(meanwhile)
    rank.request = request("a")._replace(kind=Kind.ALLGATHER)
    rank.replica.cache.remember(3, rank.request, (3, 3))
    entry = rank.entry()
    entry.allocate = lambda shape, rows: ((shape, rows), 0)
    assert rank.calls.run((entry,))
    assert (entry.output, entry.rows) == (((6,), (3, 3)), (3, 3))


def test_a_call_that_was_left_when_the_group_ended_fails() -> None:
    def meanwhile(rank: Rank) -> int:
        outcome = rank.leave()
        rank.end()
        rank.calls.settle()
        return outcome

    rank = Rank(meanwhile)
    entry = rank.entry()
    assert rank.calls.run((entry,))
    assert isinstance(entry.error, ShutDown)
    assert not rank.replica.by_bit


@pytest.mark.parametrize("outcome", [native.CALL_REFUSED, native.CALL_LEFT, native.CALL_DONE])
def test_an_interrupted_call_has_happened_or_has_not(outcome: int) -> None:
    def meanwhile(rank: Rank) -> int:
        rank.page.call.outcome = outcome
        rank.is_left = outcome == native.CALL_LEFT
        raise KeyboardInterrupt

    rank = Rank(meanwhile)
    entry = rank.entry()
    with pytest.raises(KeyboardInterrupt):
        rank.calls.run((entry,))
    rank.wake.assert_called()
    rank.calls.settle()
    assert entry.is_done == (outcome == native.CALL_DONE)
    assert rank.in_flight.all() == ([entry] if outcome == native.CALL_LEFT else [])
    assert rank.replica.by_bit == ({3: entry} if outcome == native.CALL_LEFT else {})


def test_an_interrupted_call_that_a_turn_has_taken_over_stays_in_flight() -> None:
    def meanwhile(rank: Rank) -> int:
        rank.leave()
        rank.calls.settle()
        raise KeyboardInterrupt

    rank = Rank(meanwhile)
    entry = rank.entry()
    with pytest.raises(KeyboardInterrupt):
        rank.calls.run((entry,))
    assert rank.in_flight.all() == [entry]
    assert rank.replica.by_bit == {3: entry}


def _resumed(answers: list[Any]) -> tuple[Rank, Entry[Any], list[int]]:
    """A call that was left with ticket 7, and then meets ``answers``, the last of them again and again."""
    tickets: list[int] = []

    def meanwhile(rank: Rank) -> int:
        rank.leave()
        return 7

    def resume(ticket: int) -> int:
        tickets.append(ticket)
        answer: Any = answers[min(len(tickets), len(answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        rank.page.call.outcome = answer if answer <= native.CALL_LEFT else native.CALL_LEFT
        return int(answer)

    rank = Rank(meanwhile)
    rank.page.resume = resume
    return rank, rank.entry(), tickets


def test_a_call_whose_tensor_does_not_come_soon_is_resumed() -> None:
    rank, entry, tickets = _resumed([11, 15, native.CALL_DONE])
    assert rank.calls.run((entry,))
    assert entry.is_done
    assert tickets == [7, 11, 15]


def test_a_call_that_a_turn_takes_over_is_not_resumed_any_more() -> None:
    rank, entry, tickets = _resumed([native.CALL_LEFT])
    assert rank.calls.run((entry,))
    assert not entry.is_done
    assert tickets == [7]


def test_turns_go_on_with_a_call_after_a_while() -> None:
    rank, entry, tickets = _resumed([7])
    assert rank.calls.run((entry,))
    assert 1 < len(tickets) < 100
    rank.wake.assert_called_once_with()
    rank.calls.settle()
    assert rank.replica.by_bit == {3: entry}


def test_the_wait_in_a_call_that_is_left_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, entry, tickets = _resumed([7])
    monkeypatch.setattr("hvdlite.engine.calls.monotonic", lambda: 5.0 + 0.008 * len(tickets))
    assert rank.calls.run((entry,))
    found = {row.name: value for row, value in rank.observer.quantities(0.0).items()}
    assert found["waited_s"] == found["unagreed_s"] == pytest.approx(0.008 * len(tickets))


def test_turns_go_on_with_a_call_that_is_interrupted_before_it_is_resumed() -> None:
    rank, entry, _ = _resumed([KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        rank.calls.run((entry,))
    rank.wake.assert_called_once_with()
    assert rank.in_flight.all() == [entry]
    rank.calls.settle()
    assert rank.replica.by_bit == {3: entry}


def test_the_decider_hears_at_once_of_calls_that_follow_at_once() -> None:
    rank = Rank(lambda rank: native.CALL_DONE)

    def call(first_at: float, late_s: float) -> None:
        rank.page.times = (first_at, first_at + late_s)
        assert rank.calls.run((rank.entry(),))

    for number in range(5):
        call(1.0 + number * 1e-4, 1e-5)
    rank.calls.settle()
    assert rank.told == [
        (8, (1, 1.0, 0, pytest.approx(1.00001), pytest.approx(1e-5)), pytest.approx(1.00001), (0, 0.0))
    ]
    for first_at, late_s in (1.0005, 1e-5), (1.0006, 0.02), (1.5, 1e-5), (1.5001, 1e-5), (1.6, 1e-5):
        call(first_at, late_s)
    rank.calls.settle()
    assert [(arrival[1], arrival[4], steps) for _, arrival, _, (steps, _) in rank.told[1:]] == [
        (1.0006, pytest.approx(0.02), 4),  # the others waited
        (1.5, pytest.approx(1e-5), 0),  # after a pause
        (1.6, pytest.approx(1e-5), 0),
    ]


def test_a_turn_that_takes_over_a_call_while_it_is_interrupted_keeps_it() -> None:
    def meanwhile(rank: Rank) -> int:
        rank.leave()
        rank.calls.settle()
        rank.calls._current[None] = rank.in_flight.all()  # as between two steps of the turn
        raise KeyboardInterrupt

    rank = Rank(meanwhile)
    entry = rank.entry()
    with pytest.raises(KeyboardInterrupt):
        rank.calls.run((entry,))
    assert rank.in_flight.all() == [entry]


def test_a_rank_is_not_late_by_the_time_since_the_last_turn() -> None:
    rank = Rank(lambda rank: native.CALL_DONE)
    for at, first, last in ((1.0, 1, 0), (600.0, 1, 0)):
        rank.page.report = lambda at=at, first=first, last=last: (2, 1, at, at, first, last, at, at + 0.5, 0.5)
        assert rank.calls.run((rank.entry(),))
    rank.observer.arrived(0, True, 600.75)
    assert rank.observer.arrival == (0, 600.75, 0, 600.75, 0.75)


@pytest.mark.parametrize("step", ["withdraw", "_release"])
def test_a_call_that_is_interrupted_at_its_end_lets_others_begin(step: str) -> None:
    rank = Rank(lambda rank: native.CALL_DONE)
    rank.page.call.outcome = native.CALL_DONE
    rank.page.prepare = lambda *arguments: None
    place: Any = rank.in_flight if step == "withdraw" else rank.calls
    original, interrupts = getattr(place, step), [KeyboardInterrupt()]

    def interrupted(entries: Sequence[Entry[Any]]) -> None:
        if interrupts:
            raise interrupts.pop()
        original(entries)

    setattr(place, step, interrupted)
    entry = rank.entry()
    with pytest.raises(KeyboardInterrupt):
        rank.calls.run((entry,))
    assert entry.is_done
    assert not rank.in_flight
    assert rank.calls.run((rank.entry(),))


def test_batches_count_calls() -> None:
    numbers: list[int] = []
    rank = Rank(lambda rank: native.CALL_DONE)
    rank.observer.subscribe(lambda work: numbers.append(work.number))
    rank.replica.batches = 4
    for rank.page.calls in (1, 2):
        assert rank.calls.run((rank.entry(),))
    assert numbers == [5, 6]


def test_what_a_call_left_is_not_moved_if_its_storage_was_resized_meanwhile() -> None:
    entry = Rank(lambda rank: 0).entry()
    entry.owner = MagicMock(data_ptr=lambda: entry.source)  # of no length
    page = Mock(rank=0, size=2)
    with pytest.raises(HorovodInternalError, match="was resized while the tensor was in flight"):
        collect(Work([entry], [()], 1), page, 1.0)
    page.collect.assert_not_called()


def test_the_tensors_of_a_group_move_in_the_order_of_their_bits() -> None:
    def meanwhile(rank: Rank) -> int:
        (_, at, count), size = rank.prepared, ctypes.sizeof(native.Carried)
        found.extend(native.Carried.from_address(at + number * size) for number in range(count))
        assert rank.in_flight.all() == entries
        return native.CALL_DONE

    found: list[native.Carried] = []
    rank = Rank(meanwhile)
    entries = rank.group(3)
    assert rank.calls.run(entries)
    assert [(tensor.name, tensor.source, tensor.bytes) for tensor in found] == [
        (bit, entry.source, 12) for bit, entry in ((18, entries[2]), (19, entries[1]), (20, entries[0]))
    ]
    assert all(entry.is_done for entry in entries)
    assert not rank.in_flight


def test_turns_go_on_with_all_tensors_of_a_group() -> None:
    rank = Rank(Rank.leave)
    entries = rank.group(2)
    assert rank.calls.run(entries)
    assert rank.in_flight.all() == entries
    rank.calls.settle()
    assert rank.replica.by_bit == {20: entries[0], 19: entries[1]}
    assert all(entry.was_taken_up for entry in entries)


def test_tensors_that_are_submitted_together_only_here_take_the_usual_way() -> None:
    rank = Rank(lambda rank: native.CALL_DONE)
    entries = rank.group(3)
    assert not rank.calls.run(entries[:2])
    assert not rank.calls.run([rank.entry(), entries[0]])
    assert not rank.in_flight
    assert rank.calls.run(entries)


def test_a_group_that_is_too_large_takes_the_usual_way() -> None:
    rank = Rank(lambda rank: native.CALL_DONE)
    assert rank.calls.run(rank.group(16))
    assert not rank.calls.run(rank.group(17))  # each takes 64 of 1024 bytes


def test_a_group_of_which_a_tensor_is_in_flight_takes_the_usual_way() -> None:
    def meanwhile(rank: Rank) -> int:
        raise AssertionError

    rank = Rank(meanwhile)
    entries = rank.group(3)
    rank.in_flight.submit(other := rank.entry(entries[1].request))
    assert not rank.calls.run(entries)
    assert rank.in_flight.all() == [other]


def test_a_carried_batch_moves_all_its_tensors_in_their_order() -> None:
    rank = Rank(lambda rank: 0)
    entries = rank.group(2)
    page = Mock(rank=0, size=2)
    work = Work(entries, [(), ()], 1)
    collect(work, page, 1.0)
    tensors, timeout_s = page.collect.call_args.args
    assert [(tensor.source, tensor.target, tensor.bytes) for tensor in tensors] == [
        (entry.source, entry.target, 12) for entry in entries
    ]
    assert (work.nbytes, timeout_s) == (24, 1.0)


def test_an_entry_that_somebody_watches_takes_the_usual_way() -> None:
    """As the first collective of a chained call, whose rest goes on when turns finish the entry."""
    rank = Rank(lambda rank: native.CALL_DONE)
    entry = rank.entry()
    assert rank.in_flight.watch(entry, Mock())
    assert not rank.calls.run((entry,))
    assert not rank.in_flight


class Unlabelled(Rank):
    """The same for calls without a name, whose description is known."""

    def __init__(self, meanwhile: Callable[[Rank], int]) -> None:
        super().__init__(meanwhile)
        self.counters = Counters()
        self.request = signed(request("allreduce.noname.0", cacheable=False))
        self.replica.cache.remember(4, self.request, ())

    def entry(self, of: Request | None = None) -> Entry[Any]:
        entry = super().entry(of)
        entry.name = Unnamed((Kind.ALLREDUCE,), self.counters)
        return entry


def test_a_call_without_a_name_has_its_number_when_it_is_done() -> None:
    def meanwhile(rank: Rank) -> int:
        rank.page.call.outcome = native.CALL_DONE
        return native.CALL_DONE

    rank = Unlabelled(meanwhile)
    entries = [rank.entry() for _ in range(2)]
    for entry in reversed(entries):
        assert rank.calls.run((entry,))
    assert [entry.name for entry in entries] == ["allreduce.noname.1", "allreduce.noname.0"]
    assert not rank.in_flight


def test_a_call_without_a_name_has_its_number_before_one_that_a_signal_handler_makes_behind_it() -> None:
    inner: list[Entry[Any]] = []

    def meanwhile(rank: Rank) -> int:
        rank.page.call.outcome = native.CALL_DONE
        rank.calls.number()  # as a group does before it makes a name
        inner.append(rank.entry())
        assert not rank.calls.run(inner)
        rank.in_flight.submit(inner[0])
        assert rank.replica.submit(rank.in_flight.take_new()).requests[0].name == "allreduce.noname.1"
        return native.CALL_DONE

    rank = Unlabelled(meanwhile)
    outer = rank.entry()
    assert rank.calls.run((outer,))
    assert outer.name == "allreduce.noname.0"


def test_a_turn_that_takes_over_a_call_without_a_name_numbers_it_before_younger_ones_and_tells() -> None:
    rank = Unlabelled(lambda rank: rank.leave())
    entry, younger = rank.entry(), rank.entry()
    assert rank.calls.run((entry,))
    rank.in_flight.submit(younger)
    new = rank.in_flight.take_new()
    assert rank.calls.settle()
    assert not rank.calls.settle()
    rank.replica.submit(new)
    assert [entry.name, younger.name] == ["allreduce.noname.0", "allreduce.noname.1"]
    assert rank.replica.by_bit == {4: entry}


@pytest.mark.parametrize("interrupts", [1, 2, 5])
def test_a_call_is_ended_whole_although_one_signal_handler_after_the_other_raises(interrupts: int) -> None:
    def meanwhile(rank: Rank) -> int:
        rank.page.call.outcome = native.CALL_DONE
        return native.CALL_DONE

    rank = Unlabelled(meanwhile)
    entry, report, left = rank.entry(), rank.page.report, interrupts

    def raises() -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise KeyboardInterrupt
        return report()

    rank.page.report = raises
    with pytest.raises(KeyboardInterrupt):
        rank.calls.run((entry,))
    assert entry.name == "allreduce.noname.0"
    assert not rank.in_flight
    assert rank.calls.run((rank.entry(),))
