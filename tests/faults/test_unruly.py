"""Ranks whose programs do not fit together: late ones are told apart from dead ones, and all ranks hear the same."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.faults.unruly import PROGRAMS
from tests.harness.hosts import Network
from tests.hosts.jobs import hvdrun, reported

SIZE = 4


def run(network: Network, program: str, **environment: str) -> tuple[list[Any], str]:
    """Runs a job on two hosts. Returns the report of each rank, and hvdrun's stderr."""
    assert program in PROGRAMS
    command = (sys.executable, "-m", "tests.faults.unruly", program)
    ended = hvdrun(network["a"], "-H", "a:2,b:2", *command, **environment)
    return reported(ended), ended.stderr


@pytest.mark.faults
@pytest.mark.parametrize("program", ["sleeps", "holds_the_gil"])
def test_a_rank_that_hangs_is_reported_as_late_and_not_lost(network: Network, program: str) -> None:
    sums, said = run(network, program, HVDLITE_STALL_CHECK_TIME_SECONDS="1")
    assert sums == [SIZE] * SIZE
    assert "rank(s) 3 did not submit gradient" in said


def test_a_forgotten_tensor_ends_the_job_on_all_ranks(network: Network) -> None:
    texts, _ = run(network, "forgets_a_tensor", HVDLITE_STALL_SHUTDOWN_TIME_SECONDS="2")
    assert all("rank 3 is missing layer 2" in text for text in texts), texts


@pytest.mark.faults
def test_ranks_may_submit_in_any_order(network: Network) -> None:
    assert run(network, "shuffles")[0] == [[SIZE]] * SIZE


def test_a_mismatch_is_the_same_error_everywhere_and_ends_nothing(network: Network) -> None:
    seen, _ = run(network, "disagrees")
    texts = {text for on_new_name, _, _, on_known_name, _, _ in seen for text in (on_new_name, on_known_name)}
    (text,) = texts
    assert "tensor 'gradient': ranks 0-2 have [3]; rank 3 has [4]" in text
    for _, first_s, first_sum, _, second_s, second_sum in seen:
        assert max(first_s, second_s) < 1.0
        assert first_sum == second_sum == SIZE
