"""hvdrun names the slow rank of a real job, and why it is slow, for each cause that a test can bring about."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.harness.hosts import Network, missing
from tests.harness.slow_ranks import FAULTS, Fault, SlowJob

pytestmark = pytest.mark.alone  # other tests would be causes too


def _check(fault: Fault, network: Network | None = None) -> None:
    with SlowJob(3, fault.name, network) as job:
        named = job.name(fault, 2)
        code = job.finish()
    assert named is not None, job.said
    assert code == 0, job.said
    assert named.rank == 2, named.line
    assert fault.says in named.cause, named.line


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if not fault.is_network])
def test_the_slow_rank_is_named_with_its_cause(name: str) -> None:
    fault = FAULTS[name]
    if reason := fault.missing():
        pytest.skip(reason)
    _check(fault)


def test_packets_that_are_lost_are_a_cause() -> None:
    if reason := missing():
        pytest.skip(reason)
    with ExitStack() as closing:
        network = closing.enter_context(Network("a", "b"))
        _check(FAULTS["packets"], network)


def test_nobody_is_named_in_a_job_of_equal_ranks() -> None:
    with SlowJob(2, "none") as job:
        job.wait_for_steps(150)
        assert job.finish() == 0
    assert job.names() == []


def test_without_enough_evidence_hvdrun_says_so() -> None:
    """The rank sleeps, which no counter tells from anything else."""
    with SlowJob(3, "late") as job:
        named = job.name(Fault("late", ""), 2)
        assert job.finish() == 0
    assert named is not None
    assert named.rank == 2
    assert "there is not enough evidence of the cause" in named.cause
    assert "slept for 0." in named.cause
