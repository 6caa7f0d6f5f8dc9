"""The observer of a group, with news, decisions, batches and times that the test chooses."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from hvdlite.engine import observer as module
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import CAPACITY, BatchRecord, Observer
from hvdlite.negotiation.delays.arrival import UNKNOWN
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import Kind, Request
from hvdlite.negotiation.replica import Work
from hvdlite.planes.base import Planes
from hvdlite.planes.local import LocalPlane
from hvdlite.tensors.dtypes import DType, Sum


class Job:
    """Rank 0 of a group, whose clock the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, leader_of: tuple[int, ...] = (0, 1, 2)) -> None:
        self.now = 100.0
        self.in_flight = InFlight(lambda: None)
        self.observer = Observer(self.in_flight, leader_of)
        self._numbers = count(1)
        monkeypatch.setattr(module, "monotonic", lambda: self.now)

    def hear(self, rank: int, at: float, was_last: bool = False) -> None:
        self.observer.heard(rank, was_last, at)

    def decide(self, *tensors: int) -> list[Work]:
        """A decision about batches of so many tensors."""
        works = [Work([_entry() for _ in range(each)], [()] * each, next(self._numbers)) for each in tensors]
        for work in works:
            work.arrival, work.told_at, work.agreed_at = self.observer.arrival, self.observer.told_at, self.now
        self.observer.decided()
        return works

    def run(self, work: Work, moved_s: float = 1.0) -> None:
        work.moved_at = self.now
        work.nbytes = sum(entry.nbytes for entry in work.entries)
        self.now += moved_s
        self.observer.done(work)
        work.entries = work.rows = ()

    def run_one(self, tensors: int) -> None:
        """Decides and runs one batch of so many tensors."""
        (work,) = self.decide(tensors)
        self.run(work)

    def latest(self) -> BatchRecord:
        return self.observer.latest()[-1]


def _entry() -> Entry:
    return Entry(Request("x", Kind.ALLREDUCE, DType.FLOAT32, (3,), Sum, 1.0, 1.0, 0, True), None, nbytes=12)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def test_a_record_says_who_was_first_and_last_and_by_how_much(job: Job) -> None:
    job.hear(2, 50.0)
    job.hear(0, 51.0)
    job.hear(1, 53.0, was_last=True)
    job.observer.told_at = 51.0
    job.run_one(2)
    assert job.latest() == BatchRecord(1, 2, 24, 2, 50.0, 1, 53.0, 2.0, 51.0, 100.0, 100.0, 101.0, 0.0)


def test_the_last_is_for_whom_the_others_waited_longest(job: Job) -> None:
    job.hear(0, 50.0)
    job.hear(1, 55.0, was_last=True)
    job.hear(0, 55.5, was_last=True)
    job.run_one(1)
    assert (job.latest().last_rank, job.latest().last_at, job.latest().late_s) == (1, 55.0, 5.0)


def test_while_others_go_on_nobody_waits(job: Job) -> None:
    job.hear(0, 50.0)
    job.hear(0, 54.0)
    job.hear(1, 55.0, was_last=True)
    job.run_one(1)
    assert (job.latest().first_at, job.latest().late_s) == (50.0, 1.0)


def test_for_ranks_of_another_host_the_others_are_those_of_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, leader_of=(0, 1, 1))
    job.hear(0, 50.0)
    job.hear(1, 54.0)
    job.hear(2, 54.0, was_last=True)
    job.run_one(1)
    assert (job.latest().last_rank, job.latest().late_s) == (2, 4.0)


def test_alone_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, leader_of=(0,))
    for at in (50.0, 60.0):
        job.hear(0, at, was_last=True)
        job.run_one(1)
        assert (job.latest().first_rank, job.latest().last_rank, job.latest().late_s) == (0, 0, 0.0)


def test_news_are_of_one_decision_only(job: Job) -> None:
    """A decision of two batches, one of errors, and one of which nobody was the last."""
    job.hear(0, 50.0)
    job.hear(1, 55.0, was_last=True)
    for work in job.decide(1, 1):
        job.run(work)
    job.hear(2, 60.0)
    job.hear(0, 61.0, was_last=True)
    job.decide()
    job.hear(1, 70.0)
    job.run_one(1)
    records = job.observer.latest()
    assert [(record.first_rank, record.last_rank, record.late_s) for record in records] == [
        (0, 1, 5.0),
        (0, 1, 5.0),
        (1, UNKNOWN, 0.0),
    ]
    assert records[-1].first_at == 70.0


def test_what_a_batch_cost_is_how_long_somebody_waited_since_the_one_before(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = job.decide(1, 1, 1, 1)
    monkeypatch.setattr("time.monotonic", lambda: job.now)
    job.run(works[0])
    job.now += 3.0
    handle = _entry()
    assert job.in_flight.watch(handle, threading.Lock())
    job.now += 2.0
    job.run(works[1], moved_s=1.0)  # somebody has waited for 3 s
    job.run(works[2], moved_s=4.0)  # and still does
    job.in_flight.waiters.clear()
    job.run(works[3], moved_s=8.0)
    assert [record.waited_s for record in job.observer.latest()] == [0.0, 3.0, 4.0, 0.0]
    statistics = job.observer.statistics(Planes(cpu=LocalPlane()))
    assert (statistics.waited_s, statistics.moved_s) == (7.0, 14.0)


def test_statistics_are_of_every_batch_also_when_one_decision_has_more_than_there_are_records(job: Job) -> None:
    told: list[int] = []
    job.observer.subscribe(lambda work: told.append(work.number))
    works = job.decide(*[2] * (3 * CAPACITY))
    for work in works:
        job.run(work)
    statistics = job.observer.statistics(Planes(cpu=LocalPlane()))
    assert (statistics.planes, statistics.batches, statistics.moved_s) == (
        {"cpu": "local"},
        3 * CAPACITY,
        3.0 * CAPACITY,
    )
    assert told == [*range(1, 3 * CAPACITY + 1)]
    assert [record.number for record in job.observer.latest()] == told[-CAPACITY:]
    assert [record.number for record in job.observer.latest(after=told[-3])] == told[-2:]


def test_a_record_keeps_its_arrivals_as_long_as_it_is_there(job: Job) -> None:
    for rank in range(2 * CAPACITY):
        job.hear(rank % 3, float(rank), was_last=True)
        job.run_one(1)
        assert all(
            record.first_at == record.last_at == record.number - 1 for record in job.observer.latest()[:: CAPACITY // 2]
        )


def test_a_record_keeps_its_arrivals_while_decisions_run_no_batch(job: Job) -> None:
    """Whatever their number: each of them may be of tensors that do not match."""
    job.hear(2, 50.0, was_last=True)
    job.run_one(1)
    before = job.latest()
    for _ in range(2 * CAPACITY):
        job.hear(0, 60.0, was_last=True)
        job.decide()
    assert job.latest() == before


def test_what_a_device_works_on_keeps_its_arrivals_while_others_are_decided(job: Job) -> None:
    job.hear(2, 50.0, was_last=True)
    (given,) = job.decide(1)
    for _ in range(2 * CAPACITY):
        job.hear(0, 60.0, was_last=True)
        job.run_one(1)
    job.run(given)
    assert (job.latest().number, job.latest().first_rank, job.latest().last_at) == (1, 2, 50.0)


def test_a_subscriber_that_fails_hears_of_no_more(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    told: dict[str, list[int]] = {"fails": [], "stays": []}

    def subscriber(name: str) -> Callable[[Work], None]:
        def hear(work: Work) -> None:
            told[name].append(len(work.entries))
            if name == "fails":
                raise RuntimeError("disk full")

        return hear

    for name in told:
        job.observer.subscribe(subscriber(name))
    for work in job.decide(3, 4):
        job.run(work)
    assert told == {"fails": [3], "stays": [3, 4]}
    assert len(job.observer.latest()) == 2


def test_who_subscribes_while_another_is_removed_hears_of_all_that_follows(job: Job) -> None:
    told: list[int] = []
    late = threading.Thread(target=job.observer.subscribe, args=[lambda work: told.append(work.number)])

    class Subscribers(tuple[Callable[[Work], None], ...]):
        """Starts ``late`` when it is read to be replaced, and lets it finish unless it is kept out meanwhile."""

        def __iter__(self) -> Iterator[Callable[[Work], None]]:
            if failed:
                late.start()
                if not job.observer._subscribing.locked():
                    late.join()
            return super().__iter__()

    failed: list[int] = []

    def fail(work: Work) -> None:
        failed.append(work.number)
        raise RuntimeError("disk full")

    job.observer._subscribers = Subscribers([fail])
    first, second = job.decide(1, 1)
    job.run(first)
    late.join()
    job.run(second)
    assert (failed, told) == ([1], [2])


def test_batches_leave_no_objects_behind(job: Job) -> None:
    """Once there are all records: neither what a batch was of, nor anything beside its record."""
    entries = [_entry()]

    def run_some(batches: int) -> None:
        for number in range(batches):
            work = Work(entries, [()], number)
            job.hear(0, job.now, was_last=True)
            work.arrival, work.told_at, work.agreed_at = job.observer.arrival, job.now, job.now
            job.observer.decided()
            job.run(work)

    run_some(2 * CAPACITY)
    gc.collect()
    before = len(gc.get_objects()), sys.getallocatedblocks()
    run_some(CAPACITY)
    gc.collect()
    after = len(gc.get_objects()), sys.getallocatedblocks()
    assert after[0] <= before[0]
    assert after[1] - before[1] < CAPACITY // 4
    assert sys.getrefcount(entries) == 2  # that of this function, and of the question


def test_readers_need_no_lock(job: Job) -> None:
    """While batches run in one thread, others find complete records with numbers without a gap."""
    is_over = threading.Event()
    found: list[Any] = []

    def read() -> None:
        while not is_over.is_set():
            records = job.observer.latest()
            numbers = [record.number for record in records]
            is_whole = all(record.done_at == record.moved_at + 1.0 and record.nbytes == 12 for record in records)
            if not is_whole or (numbers and numbers != [*range(numbers[0], numbers[-1] + 1)]):
                found.append(records)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for _ in range(2000):
            job.run_one(1)
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
    for reader in readers:
        reader.join()
    assert found == []


def test_a_wait_is_for_others_until_its_batch_is_agreed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: job.now)
    handle = _entry()

    def sums() -> tuple[float, float]:
        found = job.observer.sums(job.now)
        return found.waited_s, found.unagreed_s

    assert job.in_flight.watch(handle, threading.Lock())
    job.now += 3.0
    assert sums() == (3.0, 3.0)  # also while it goes on
    (work,) = job.decide(1)
    job.observer.agreed = [work]
    job.now += 1.0
    assert sums() == (4.0, 3.0)
    job.run(work, moved_s=2.0)
    job.observer.agreed = []
    assert sums() == (6.0, 3.0)
    job.in_flight.waiters.clear()
    job.now += 50.0
    assert sums() == (6.0, 3.0)  # nobody waits
    (early,) = job.decide(1)
    job.now += 5.0
    assert job.in_flight.watch(handle, threading.Lock())
    job.run(early, moved_s=7.0)  # agreed before anybody waited
    assert sums() == (13.0, 3.0)


def test_a_wait_that_ends_without_a_batch_counts_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: job.now)
    assert job.in_flight.watch(_entry(), threading.Lock())
    job.now += 60.0
    job.observer.refused()
    job.in_flight.waiters.clear()
    job.now += 5.0
    job.run_one(1)
    assert job.observer.sums(job.now)[2:4] == (60.0, 60.0)


def test_each_decision_counts_once_for_the_rank_that_was_last(job: Job) -> None:
    job.hear(0, 50.0)
    job.hear(1, 55.0, was_last=True)
    for work in job.decide(1, 1):
        job.run(work)
    job.hear(1, 60.0)
    job.hear(2, 60.5, was_last=True)
    job.decide(1)
    job.hear(0, 70.0)
    job.decide(1)  # nobody was the last
    assert job.observer.sums(job.now).late_s == [0.0, 5.0, 0.5]


def test_the_one_rank_that_is_missing_is_waited_for_so_far(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: job.now)
    job.hear(0, 100.0)
    job.hear(1, 101.0)
    job.observer.missing = 2
    assert job.observer.sums(111.0).late_s == [0.0, 0.0, 10.0]
    job.hear(2, 121.0, was_last=True)
    job.run_one(1)
    assert job.observer.sums(200.0).late_s == [0.0, 0.0, 20.0]  # and not again what was counted before
    job.hear(0, 200.0)
    job.observer.missing = 1
    job.now = 205.0
    job.observer.refused()  # the job ends
    assert job.observer.sums(300.0).late_s == [0.0, 5.0, 20.0]
