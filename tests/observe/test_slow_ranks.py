"""hvdrun names the slow rank of a real job, and why it is slow, for each cause that a test can bring about."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.harness.hosts import Network, missing
from tests.harness.slow_ranks import FAULTS, Fault, SlowJob

_RUNS = 3  # a busy machine may hide a cause behind another one once


def _outcome(fault: Fault, network: Network | None = None) -> tuple[int, bool]:
    """The rank that is named, and whether its cause is the right one."""
    with SlowJob(3, fault.name, network) as job:
        named = job.name(fault, 2)
        code = job.finish()
    assert named is not None, job.said
    assert code == 0, job.said
    return named.rank, fault.says in named.cause


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if not fault.is_network])
def test_the_slow_rank_is_named_with_its_cause(name: str) -> None:
    fault = FAULTS[name]
    if reason := fault.missing():
        pytest.skip(reason)
    outcomes = []
    while (2, True) not in outcomes and len(outcomes) < _RUNS:
        outcomes.append(_outcome(fault))
    assert outcomes[-1] == (2, True), outcomes


def test_packets_that_are_lost_are_a_cause() -> None:
    if reason := missing():
        pytest.skip(reason)
    with ExitStack() as closing:
        network = closing.enter_context(Network("a", "b"))
        assert _outcome(FAULTS["packets"], network) == (2, True)


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
