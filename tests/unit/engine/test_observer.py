"""The observer of a group, with news, decisions, batches and times that the test chooses."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from hvdlite.engine import observer as module
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.metrics.table import BATCHES, IN_FLIGHT, MOVED_S, UNAGREED_S, WAITED_S
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
        self.works: list[Work] = []
        monkeypatch.setattr(module, "monotonic", lambda: self.now)

    def arrive(self, rank: int, at: float, was_last: bool = False) -> None:
        self.observer.arrived(rank, was_last, at)

    def decide(self, *tensors: int) -> list[Work]:
        """A decision about batches of so many tensors."""
        works = [Work([_entry() for _ in range(each)], [()] * each, next(self._numbers)) for each in tensors]
        for work in works:
            work.arrival, work.sent_at, work.agreed_at = self.observer.arrival, self.observer.sent_at, self.now
        self.observer.decided()
        return works

    def run(self, work: Work, moved_s: float = 1.0) -> None:
        work.moved_at = self.now
        work.nbytes = sum(entry.nbytes for entry in work.entries)
        self.now += moved_s
        self.observer.done(work)
        work.entries = work.rows = ()
        self.works.append(work)

    def run_one(self, tensors: int) -> None:
        """Decides and runs one batch of so many tensors."""
        (work,) = self.decide(tensors)
        self.run(work)

    def latest(self) -> Work:
        return self.works[-1]

    def last(self) -> tuple[int, float]:
        """The rank that was last for the latest batch, and how late."""
        assert self.latest().arrival is not None
        _, _, rank, _, late_s = self.latest().arrival
        return rank, late_s


def _entry() -> Entry:
    return Entry(Request("x", Kind.ALLREDUCE, DType.FLOAT32, (3,), Sum, 1.0, 1.0, 0, True), None, nbytes=12)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def test_a_batch_says_who_was_first_and_last_and_by_how_much(job: Job) -> None:
    job.arrive(2, 50.0)
    job.arrive(0, 51.0)
    job.arrive(1, 53.0, was_last=True)
    job.observer.sent_at = 51.0
    job.run_one(2)
    work = job.latest()
    assert (work.number, work.tensors, work.nbytes, work.arrival) == (1, 2, 24, (2, 50.0, 1, 53.0, 2.0))
    assert (work.sent_at, work.agreed_at, work.moved_at, work.done_at) == (51.0, 100.0, 100.0, 101.0)
    assert work.waited_s == 0.0


def test_the_last_is_for_whom_the_others_waited_longest(job: Job) -> None:
    job.arrive(0, 50.0)
    job.arrive(1, 55.0, was_last=True)
    job.arrive(0, 55.5, was_last=True)
    job.run_one(1)
    assert job.latest().arrival == (0, 50.0, 1, 55.0, 5.0)


def test_while_others_go_on_nobody_waits(job: Job) -> None:
    job.arrive(0, 50.0)
    job.arrive(0, 54.0)
    job.arrive(1, 55.0, was_last=True)
    job.run_one(1)
    assert job.last() == (1, 1.0)


def test_for_ranks_of_another_host_the_others_are_those_of_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, leader_of=(0, 1, 1))
    job.arrive(0, 50.0)
    job.arrive(1, 54.0)
    job.arrive(2, 54.0, was_last=True)
    job.run_one(1)
    assert job.last() == (2, 4.0)


def test_alone_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, leader_of=(0,))
    for at in (50.0, 60.0):
        job.arrive(0, at, was_last=True)
        job.run_one(1)
        assert job.last() == (0, 0.0)


def test_news_are_of_one_decision_only(job: Job) -> None:
    """A decision of two batches, one of errors, and one of which nobody was the last."""
    job.arrive(0, 50.0)
    job.arrive(1, 55.0, was_last=True)
    for work in job.decide(1, 1):
        job.run(work)
    job.arrive(2, 60.0)
    job.arrive(0, 61.0, was_last=True)
    job.decide()
    job.arrive(1, 70.0)
    job.run_one(1)
    arrivals = [work.arrival for work in job.works]
    assert arrivals == [(0, 50.0, 1, 55.0, 5.0), (0, 50.0, 1, 55.0, 5.0), (1, 70.0, UNKNOWN, 0.0, 0.0)]


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
    assert [work.waited_s for work in job.works] == [0.0, 3.0, 4.0, 0.0]
    statistics = job.observer.statistics(Planes(cpu=LocalPlane()))
    assert (statistics.waited_s, statistics.moved_s) == (7.0, 14.0)


def test_quantities_and_subscribers_are_of_every_batch_of_a_decision(job: Job) -> None:
    numbers: list[int] = []
    job.observer.subscribe(lambda work: numbers.append(work.number))
    for work in job.decide(*[2] * 100):
        job.run(work)
    found = job.observer.quantities(job.now)
    assert (found[BATCHES], found[MOVED_S], found[IN_FLIGHT]) == (100, 100.0, 0)
    statistics = job.observer.statistics(Planes(cpu=LocalPlane()))
    assert (statistics.planes, statistics.batches, statistics.moved_s) == ({"cpu": "local"}, 100, 100.0)
    assert numbers == [*range(1, 101)]


def test_what_a_device_works_on_keeps_its_arrivals_while_others_are_decided(job: Job) -> None:
    job.arrive(2, 50.0, was_last=True)
    (given,) = job.decide(1)
    for _ in range(100):
        job.arrive(0, 60.0, was_last=True)
        job.run_one(1)
    job.run(given)
    assert (job.latest().number, job.last()) == (1, (2, 0.0))


def test_a_subscriber_that_fails_is_not_called_again(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    told: dict[str, list[int]] = {"fails": [], "stays": []}

    def subscriber(name: str) -> Callable[[Work], None]:
        def receive(work: Work) -> None:
            told[name].append(len(work.entries))
            if name == "fails":
                raise RuntimeError("disk full")

        return receive

    for name in told:
        job.observer.subscribe(subscriber(name))
    for work in job.decide(3, 4):
        job.run(work)
    assert told == {"fails": [3], "stays": [3, 4]}


def test_who_subscribes_while_another_is_removed_hears_of_all_that_follows(job: Job) -> None:
    told: list[int] = []
    late = threading.Thread(target=job.observer.subscribe, args=[lambda work: told.append(work.number)])

    class Subscribers(tuple[tuple[Callable[[Work], None], None], ...]):
        """Starts ``late`` when it is read to be replaced, and lets it finish unless it is kept out meanwhile."""

        def __iter__(self) -> Iterator[tuple[Callable[[Work], None], None]]:
            if failed:
                late.start()
                if not job.observer._subscribing.locked():
                    late.join()
            return super().__iter__()

    failed: list[int] = []

    def fail(work: Work) -> None:
        failed.append(work.number)
        raise RuntimeError("disk full")

    job.observer._subscribers = Subscribers([(fail, None)])
    first, second = job.decide(1, 1)
    job.run(first)
    late.join()
    job.run(second)
    assert (failed, told) == ([1], [2])


def test_batches_leave_no_objects_behind(job: Job) -> None:
    entries = [_entry()]

    def run_some() -> None:
        for number in range(500):
            work = Work(entries, [()], number)
            job.arrive(0, job.now, was_last=True)
            work.arrival, work.sent_at, work.agreed_at = job.observer.arrival, job.now, job.now
            job.observer.decided()
            job.run(work)
        job.works.clear()
        gc.collect()

    run_some()
    before = len(gc.get_objects()), sys.getallocatedblocks()
    run_some()
    after = len(gc.get_objects()), sys.getallocatedblocks()
    assert after[0] <= before[0]
    assert after[1] - before[1] < 100
    assert sys.getrefcount(entries) == 2  # that of this function, and of the question


def test_a_wait_is_for_others_until_its_batch_is_agreed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: job.now)
    handle = _entry()

    def sums() -> tuple[float, float]:
        found = job.observer.quantities(job.now)
        return found[WAITED_S], found[UNAGREED_S]

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
    found = job.observer.quantities(job.now)
    assert (found[WAITED_S], found[UNAGREED_S]) == (60.0, 60.0)


def test_each_decision_counts_once_for_the_rank_that_was_last(job: Job) -> None:
    job.arrive(0, 50.0)
    job.arrive(1, 55.0, was_last=True)
    for work in job.decide(1, 1):
        job.run(work)
    job.arrive(1, 60.0)
    job.arrive(2, 60.5, was_last=True)
    job.decide(1)
    job.arrive(0, 70.0)
    job.decide(1)  # nobody was the last
    assert job.observer.late_s(job.now) == [0.0, 5.0, 0.5]


def test_the_one_rank_that_is_missing_is_waited_for_so_far(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: job.now)
    job.arrive(0, 100.0)
    job.arrive(1, 101.0)
    job.observer.missing = 2
    assert job.observer.late_s(111.0) == [0.0, 0.0, 10.0]
    job.arrive(2, 121.0, was_last=True)
    job.run_one(1)
    assert job.observer.late_s(200.0) == [0.0, 0.0, 20.0]  # and not again what was counted before
    job.arrive(0, 200.0)
    job.observer.missing = 1
    job.now = 205.0
    job.observer.refused()  # the job ends
    assert job.observer.late_s(300.0) == [0.0, 5.0, 20.0]
