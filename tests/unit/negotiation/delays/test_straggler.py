"""The straggler watch, with a clock that the test moves: who is named, after how many steps, and who never is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.negotiation.delays.straggler import ALL_REPORTED, StragglerWatch, Unreported

GRADIENT, BARRIER = 0b01, 0b10
STEP_S = 0.15  # of computing, on every rank


class Job:
    """Ranks on hosts ``a`` and ``b``, the first of which is the root's; users know them by numbers from 10 on."""

    def __init__(self, size: int, on_b: int = 0) -> None:
        leader = size - on_b
        self.size = size
        self.now = 100.0
        self.warnings: list[str] = []
        self.named: list[dict[str, Any]] = []
        self.observer = Observer(InFlight(lambda: None), [*range(leader), *[leader] * on_b])
        self.watch = StragglerWatch(range(10, 10 + size), ["a"] * leader + ["b"] * on_b)

    def step(self, late_s: dict[int, float], length_s: float = STEP_S) -> None:
        """Computing, a gradient for which some ranks are late, and a barrier."""
        self.now += length_s
        self.reduce(GRADIENT, late_s)
        self.reduce(BARRIER, {})

    def reduce(
        self, bits: int, late_s: dict[int, float], generation: int = 0, *, unreported: Unreported = ALL_REPORTED
    ) -> None:
        """All ranks submit ``bits``, or what has no name if there are none, after what is ``unreported``."""
        began, order = self.now, sorted(range(self.size), key=lambda rank: late_s.get(rank, 0.0))
        for rank in order:
            self.now = began + late_s.get(rank, 0.0)
            self.observer.arrived(rank, rank == order[-1], self.now)
        self.decide(bits, generation, unreported)

    def decide(self, bits: int, generation: int = 0, unreported: Unreported = ALL_REPORTED) -> None:
        """The root lets them run."""
        if named := self.watch.ran(generation, bits, self.observer.arrival, self.now, unreported):
            self.warnings.append(named.text)
            self.named.append(named._asdict())
        self.observer.arrival = None


def test_a_straggler_is_named_soon_and_again_after_30_s_and_when_they_are_twice_as_many() -> None:
    job = Job(4)
    job.step({})
    job.step({})
    told = []
    for step in range(1, 200):
        before = len(job.warnings)
        job.step({2: 0.3})
        if len(job.warnings) > before:
            told.append(step)
    assert told == [7, 74, 147]
    assert job.warnings[0].startswith(
        "rank 12 on a makes all others wait, 300 ms of each step (67% of the time, for 3 s), before the first gradient."
    )
    assert "hvdrun doctor -H a" in job.warnings[0]
    assert job.named[0]["said"] == job.warnings[0].partition(". ")[0]
    assert [named["steps"] for named in job.named] == [step - 1 for step in told]


def test_the_gradients_of_one_backward_are_one_step() -> None:
    job = Job(2)
    for _ in range(15):
        for gradient in range(50):
            job.now += 0.005
            job.reduce(1 << gradient, {1: 0.02})
    assert job.warnings == []


def test_a_wait_after_calls_that_are_not_told_is_between_gradients() -> None:
    job = Job(2)
    for _ in range(30):
        job.now += STEP_S
        job.reduce(GRADIENT, {})
        before = job.now = job.now + 0.2  # calls until then
        job.reduce(GRADIENT << 2, {1: 0.1}, unreported=Unreported(1, before))
    assert job.named[0]["phase"] == "between"


def test_steps_that_came_before_are_counted() -> None:
    told = []
    for before in (0, 9):
        job = Job(2)
        for _ in range(30):
            job.now += STEP_S
            job.reduce(GRADIENT, {1: 0.1}, unreported=Unreported(before, 0.0))
        told.append(job.named[0])
    assert told[1]["steps"] == 10 * told[0]["steps"]
    assert told[1]["late_s"] == pytest.approx(told[0]["late_s"] / 10)


def test_a_wait_while_others_go_on_is_counted_from_the_last_that_they_said() -> None:
    job = Job(2)
    for _ in range(22):
        for moment, rank, was_last in [(0.0, 0, False), (0.1, 0, False), (0.12, 1, True), (0.2, 1, True)]:
            job.observer.arrived(rank, was_last, job.now + moment)
        job.now += 0.2
        job.decide(GRADIENT)
    assert len(job.warnings) == 1
    assert "100 ms of each step (50% of the time" in job.warnings[0]


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("seed", range(3))
def test_a_balanced_job_names_nobody(size: int, seed: int) -> None:
    """However much its ranks differ in a step: each of them is sometimes late by as much as the step itself."""
    job, dice = Job(size), random.Random(seed)
    for _ in range(10_000):
        job.step({rank: dice.expovariate(2 / STEP_S) for rank in range(size)})
    assert job.warnings == []


@pytest.mark.parametrize(
    ("late_s", "length_s"),
    [(0.009, 0.02), (0.05, 1.0)],
    ids=["by little", "by a small share"],
)
def test_who_is_hardly_late_is_not_named(late_s: float, length_s: float) -> None:
    job = Job(2)
    for _ in range(100):
        job.step({1: late_s}, length_s)
    assert job.warnings == []


def test_who_is_sometimes_late_is_not_named() -> None:
    """Rank 0 writes a checkpoint in every tenth step, and reports in every third."""
    job = Job(4)
    for step in range(1000):
        job.step({0: 2.0 if step % 10 == 0 else 0.1 if step % 3 == 0 else 0.0})
    assert job.warnings == []


def test_nobody_is_named_for_what_two_ranks_share() -> None:
    job = Job(4)
    for _ in range(100):
        job.step({1: 0.3, 3: 0.305})
    assert job.warnings == []


def test_of_another_host_the_last_rank_is_named_by_what_ranks_of_other_hosts_waited() -> None:
    job = Job(6, on_b=3)
    for _ in range(22):
        job.step({3: 0.2, 4: 0.2, 5: 0.2001})  # one message of their leader tells of all
    assert len(job.warnings) == 1
    assert "rank 15 on b makes all others wait, 200 ms of each step" in job.warnings[0]


def test_many_ranks_on_one_host_are_not_named_for_having_the_last_among_them() -> None:
    job, dice = Job(8, on_b=7), random.Random(7)
    for _ in range(10_000):
        job.step({rank: dice.expovariate(2 / STEP_S) for rank in range(8)})
    assert job.warnings == []


def test_whose_pauses_fall_into_some_steps_only_is_named_although_another_was_late_once() -> None:
    job = Job(4)
    for step in range(40):
        job.step({0: 0.3} if step == 15 else {2: 0.3} if step % 3 else {})
    assert len(job.warnings) == 1
    assert "rank 12 on a makes all others wait" in job.warnings[0]


def test_who_was_named_is_named_again_only_after_another_or_for_twice_as_many() -> None:
    job = Job(3)
    for _ in range(5):
        for _ in range(25):
            job.step({1: 0.3})
        for _ in range(30):
            job.step({})
    assert len(job.warnings) == 1
    for _ in range(25):
        job.step({2: 0.3})
    assert [named["rank"] for named in job.named] == [11, 12]


def test_short_steps_are_taken_together_for_a_tenth_of_a_second() -> None:
    """A rank that is stopped for 90 ms of each 100 is late in one of ten steps."""
    job = Job(2)
    began = job.now
    for step in range(400):
        job.step({1: 0.09 if step % 10 == 0 else 0.0}, 0.001)
    assert len(job.warnings) == 1
    assert job.now - began < 5.0
    assert job.named[0]["late_s"] == pytest.approx(0.009, rel=0.1)


def test_where_no_tensor_has_a_name_a_second_is_a_step() -> None:
    job = Job(2)
    began = job.now
    while not job.warnings:
        job.now += 0.2
        job.reduce(0, {1: 0.2})
        assert job.now - began < 30.0
    assert job.now - began > 10.0


def test_bits_of_another_generation_are_other_tensors() -> None:
    job = Job(2)
    for generation in range(100):
        job.now += STEP_S
        job.reduce(GRADIENT, {1: 0.3}, generation)
    assert job.warnings == []


@pytest.mark.parametrize(
    ("before_s", "each_s", "phase"),
    [(0.1, 0.0, "before"), (0.0, 0.01, "between"), (0.05, 0.005, "both")],
)
def test_what_is_lost_before_the_first_gradient_is_told_from_what_is_lost_between_gradients(
    before_s: float, each_s: float, phase: str
) -> None:
    """Rank 0 has ten gradients within 20 ms; rank 1 has them later, and others by then."""
    job = Job(2)
    for _ in range(40):
        began = job.now + STEP_S
        told = [(began + 0.002 * number, 0, number) for number in range(10)]
        told += [(at + before_s + each_s * (number + 1), 1, number) for at, _, number in told]
        for at, rank, number in sorted(told):
            job.now = at
            job.observer.arrived(rank, rank == 1, at)
            if rank == 1:
                job.decide(1 << number)
    assert job.named[0]["phase"] == phase
    lost_s = before_s + 10 * each_s
    assert job.named[0]["late_s"] == pytest.approx(lost_s, rel=0.15)
    assert job.named[0]["share"] == pytest.approx(lost_s / (STEP_S + 0.018 + lost_s), rel=0.15)


@pytest.mark.parametrize("pause_s", [0.1, 0.6])
def test_a_metric_before_the_first_gradient_is_none(pause_s: float) -> None:
    """All wait for a metric that begins the step. Then rank 1 is late, by less and by more than computing takes."""
    job = Job(2)
    for _ in range(40):
        job.now += 0.001
        job.reduce(BARRIER, {})
        job.now += STEP_S
        job.reduce(GRADIENT, {1: pause_s})
    assert job.named[0]["phase"] == "before"


def test_a_pause_between_gradients_that_is_longer_than_computing_is_none_before_them() -> None:
    job = Job(2)
    for _ in range(40):
        job.now += STEP_S
        job.reduce(BARRIER, {})
        told = [(job.now + 0.001 * number, 0, number) for number in range(2, 5)]
        told += [(job.now + 0.003 + 2 * STEP_S * (number > 2), 1, number) for number in range(2, 5)]
        for at, rank, number in sorted(told):
            job.now = at
            job.observer.arrived(rank, rank == 1, at)
            if rank == 1:
                job.decide(1 << number)
    assert job.named[0]["phase"] == "between"


def test_who_becomes_slow_is_named_with_what_it_was_before() -> None:
    job = Job(3)
    for _ in range(40):
        job.step({1: 0.012})
    for _ in range(12):
        job.step({1: 0.3})
    (named,) = job.named
    assert named["past_s"] == pytest.approx(0.012)
    assert "before that 12 ms" in named["said"]


def test_long_steps_are_named_after_ten_and_a_balanced_job_of_them_names_nobody() -> None:
    for size in (2, 3, 5):
        job, dice = Job(size), random.Random(size)
        for _ in range(1000):
            job.step({rank: dice.expovariate(1.0) for rank in range(size)}, 1.0)
        assert job.warnings == []
    job = Job(2)
    for _ in range(11):
        job.step({1: 0.5}, 1.0)
    assert len(job.warnings) == 1
