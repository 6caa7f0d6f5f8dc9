"""The straggler watch, with a clock that the test moves: who is named, after how many steps, and who never is."""

from __future__ import annotations

import random

import pytest

from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.negotiation.delays.straggler import StragglerWatch

GRADIENT, BARRIER = 0b01, 0b10
STEP_S = 0.15  # of computing, on every rank


class Job:
    """Ranks on hosts ``a`` and ``b``, the first of which is the root's; users know them by numbers from 10 on."""

    def __init__(self, size: int, on_b: int = 0) -> None:
        leader = size - on_b
        self.size = size
        self.now = 100.0
        self.warnings: list[str] = []
        self.observer = Observer(InFlight(lambda: None), [*range(leader), *[leader] * on_b])
        self.watch = StragglerWatch(range(10, 10 + size), ["a"] * leader + ["b"] * on_b)

    def step(self, late_s: dict[int, float], length_s: float = STEP_S) -> None:
        """Computing, a gradient for which some ranks are late, and a barrier."""
        self.now += length_s
        self.reduce(GRADIENT, late_s)
        self.reduce(BARRIER, {})

    def reduce(self, bits: int, late_s: dict[int, float], generation: int = 0) -> None:
        """All ranks submit ``bits``, or what has no name if there are none."""
        began, order = self.now, sorted(range(self.size), key=lambda rank: late_s.get(rank, 0.0))
        for rank in order:
            self.now = began + late_s.get(rank, 0.0)
            self.observer.heard(rank, rank == order[-1], self.now)
        self.decide(bits, generation)

    def decide(self, bits: int, generation: int = 0) -> None:
        """The root lets them run."""
        if warning := self.watch.ran(generation, bits, self.observer.arrival, self.now):
            self.warnings.append(warning)
        self.observer.arrival = None


def test_a_straggler_is_named_after_20_steps_and_again_when_they_are_twice_as_many() -> None:
    job = Job(4)
    job.step({})
    job.step({})
    told = []
    for step in range(1, 100):
        before = len(job.warnings)
        job.step({2: 0.3})
        if len(job.warnings) > before:
            told.append(step)
    assert told == [20, 40, 80]
    assert job.warnings[0].startswith(
        "all others wait for rank 12 on a: in 20 of the last 20 steps they did, for 300 ms on average, 67% of the time."
    )
    assert "hvdrun doctor -H a" in job.warnings[0]
    assert "80 of the last 80 steps" in job.warnings[2]


def test_the_gradients_of_one_backward_are_one_step() -> None:
    job = Job(2)
    for _ in range(15):
        for gradient in range(50):
            job.now += 0.005
            job.reduce(1 << gradient, {1: 0.02})
    assert job.warnings == []


def test_a_wait_while_others_go_on_is_counted_from_the_last_that_they_said() -> None:
    job = Job(2)
    for _ in range(22):
        for moment, rank, was_last in [(0.0, 0, False), (0.1, 0, False), (0.12, 1, True), (0.2, 1, True)]:
            job.observer.heard(rank, was_last, job.now + moment)
        job.now += 0.2
        job.decide(GRADIENT)
    assert len(job.warnings) == 1
    assert "100 ms on average, 50% of the time" in job.warnings[0]


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
    assert "all others wait for rank 15 on b: in 20 of the last 20 steps they did, for 200 ms" in job.warnings[0]


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
    assert "all others wait for rank 12 on a:" in job.warnings[0]


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
    assert [warning.split(":")[0][-12:] for warning in job.warnings] == ["rank 11 on a", "rank 12 on a"]


def test_short_steps_are_taken_together_for_a_tenth_of_a_second() -> None:
    """A rank that is stopped for 90 ms of each 100 is late in one of ten steps."""
    job = Job(2)
    began = job.now
    for step in range(250):
        job.step({1: 0.09 if step % 10 == 0 else 0.0}, 0.001)
    assert len(job.warnings) == 1
    assert job.now - began < 3.0


def test_where_no_tensor_has_a_name_a_second_is_a_step() -> None:
    job = Job(2)
    began = job.now
    while not job.warnings:
        job.now += 0.2
        job.reduce(0, {1: 0.2})
        assert job.now - began < 30.0
    assert job.now - began > 20.0


def test_bits_of_another_generation_are_other_tensors() -> None:
    job = Job(2)
    for generation in range(100):
        job.now += STEP_S
        job.reduce(GRADIENT, {1: 0.3}, generation)
    assert job.warnings == []
