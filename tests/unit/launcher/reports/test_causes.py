"""Causes of a slow rank, from what the ranks lost by the second; and how little is believed of what agents say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hvdlite.launcher.reports.causes import KINDS, Window, explain, windows

EQUAL = {"run_s": 0.4, "delay_s": 0.05, "waited_s": 0.5, "cpu_s": 0.42, "system_s": 0.02, "slices": 200.0}
SLOW = {**EQUAL, "waited_s": 0.0}


def job(size: int = 4, **own: float) -> dict[int, Window]:
    """Rank 1 is on host b, the others on a."""
    found = {rank: Window("a", 5.0, EQUAL) for rank in range(size)}
    found[1] = Window("b", 5.0, {**SLOW, **own}, cores=0.5, memory=512 << 20)
    return found


@pytest.mark.parametrize(
    ("name", "own", "said"),
    [
        ("stopped", {"stopped_s": 0.4}, "a signal stopped it for 0.4 s of each second"),
        (
            "throttled",
            {"throttled_s": 0.4, "throttles": 6, "delay_s": 0.4},
            "throttles it, 0.4 s of each second (limit 0.5 cores)",
        ),
        ("throttled", {"throttled_s": 0.1, "throttles": 6, "delay_s": 0.5}, "throttles it, 0.5 s of each second"),
        (
            "queue",
            {"throttled_s": 0.02, "throttles": 1, "delay_s": 0.5},
            "it waits for a processor 0.5 s of each second",
        ),
        ("swapping", {"swapped_in": 900, "major_faults": 80, "run_s": 0.2}, "its host swaps"),
        ("memory", {"reclaims": 90, "major_faults": 80, "system_s": 0.3}, "its memory limit (limit 512 MiB)"),
        ("memory", {"reclaims": 90, "memory_s": 0.3, "run_s": 0.95}, "which takes it 0.3 s of each second"),
        ("steal", {"steal_s": 0.4, "run_s": 0.9}, "gives its processors to others 0.4 s of each second"),
        ("frequency", {"slowed_s": 0.5, "run_s": 0.95}, "runs at 50% of its highest frequency"),
        ("collecting", {"collected_s": 0.3, "run_s": 0.8}, "Python collects garbage there for 0.3 s"),
        ("faults", {"minor_faults": 90_000, "system_s": 0.4, "run_s": 0.9}, "page faults take it 0.5 s"),
        ("faults", {"major_faults": 60, "run_s": 0.2}, "page faults take it"),
        (
            "gil",
            {"gil_late_s": 0.012, "gil_sleeps": 4, "slices": 150, "cpu_s": 0.9, "run_s": 0.4},
            "waits for the GIL 0.5 s",
        ),
        ("loading", {"loading_s": 0.5}, "it waits for data 0.5 s of each second"),
        ("computing", {"run_s": 0.9, "cpu_s": 0.92}, "it computes 0.6 s of each second longer than the others"),
        ("packets", {"timeouts": 3.0}, "packets between its host and that of rank 0 are lost"),
        ("", {}, "there is not enough evidence of the cause; of each second its main thread ran for 0.4 s"),
        ("", {"delay_s": 0.1, "loading_s": 0.1}, "waited for a processor for 0.1 s"),
    ],
)
@pytest.mark.parametrize("size", [2, 4])
def test_each_cause_is_said_in_a_sentence(size: int, name: str, own: Mapping[str, float], said: str) -> None:
    cause = explain(1, 0.5, job(size, **own))
    assert cause.name == name, cause.text
    assert said in cause.text
    assert bool(cause.short) == bool(name)


@pytest.mark.parametrize(
    ("own", "name"),
    [
        ({"stopped_s": 0.5, "delay_s": 0.3, "loading_s": 0.4}, "stopped"),
        ({"throttled_s": 0.3, "throttles": 5, "delay_s": 0.5, "collected_s": 0.3}, "throttled"),
        ({"delay_s": 0.25, "loading_s": 0.9}, "loading"),
        ({"delay_s": 0.6, "loading_s": 0.6}, "queue"),
        ({"gil_late_s": 0.02, "gil_sleeps": 4, "delay_s": 0.6}, "queue"),  # no other thread computes
        ({"minor_faults": 900_000, "loading_s": 0.5}, "loading"),  # which take no time
        (
            {"run_s": 0.8, "delay_s": 0.25, "collected_s": 0.4},
            "collecting",
        ),  # who runs for longer also waits for longer
    ],
)
def test_a_cause_goes_before_what_it_causes(own: Mapping[str, float], name: str) -> None:
    assert explain(1, 0.5, job(**own)).name == name


def test_what_all_ranks_lose_is_no_cause() -> None:
    every = {**EQUAL, "collected_s": 0.4, "delay_s": 0.4}
    found = {rank: Window("a", 5.0, every) for rank in range(4)}
    assert explain(1, 0.5, found).name == ""


def test_half_of_the_ranks_may_suffer_from_what_only_one_is_named_for() -> None:
    """Two hosts of four, of which the cgroup of one throttles all ranks."""
    throttled = {**SLOW, "throttled_s": 0.4, "throttles": 5}
    found = {rank: Window("a", 5.0, EQUAL) for rank in range(4)}
    found |= {rank: Window("b", 5.0, throttled, cores=2.0) for rank in range(4, 8)}
    assert explain(5, 0.5, found).name == "throttled"


def test_without_the_evidence_of_the_rank_or_of_others_there_is_not_enough() -> None:
    for found in ({}, {1: Window("b", 5.0, SLOW)}, {0: Window("a", 5.0, EQUAL)}):
        assert explain(1, 0.5, found).text.startswith("there is not enough evidence")


def test_lost_packets_do_not_matter_on_the_host_of_rank_0() -> None:
    found = {rank: Window("a", 5.0, {**SLOW, "timeouts": 50.0}) for rank in range(2)}
    assert explain(1, 0.5, found).name == ""


def test_all_causes_have_names_of_their_own() -> None:
    assert len({kind.name for kind in KINDS}) == len({kind.short for kind in KINDS}) == len(KINDS) == 13


def test_the_answer_of_an_agent_becomes_rates() -> None:
    answer = [{"rank": 3, "over_s": 4.0, "sums": {"run_s": 2.0, "delay_s": -1.0}, "cores": 0.5, "memory": None}]
    assert windows(answer, "b", frozenset({3})) == {3: Window("b", 4.0, {"run_s": 0.5, "delay_s": 0.0}, 0.5, None)}


def test_what_a_rank_writes_itself_is_divided_by_the_time_that_it_covers() -> None:
    sums = {"run_s": 2.0, "collected_s": 0.9, "covered_s": 3.0}
    answer = [{"rank": 3, "over_s": 4.0, "sums": sums, "cores": None, "memory": None}]
    assert windows(answer, "b", frozenset({3}))[3].rates == {"run_s": 0.5, "collected_s": 0.3, "covered_s": 1.0}


GOOD: dict[str, Any] = {"rank": 3, "over_s": 4.0, "sums": {}, "cores": None, "memory": None}


@pytest.mark.parametrize(
    "answer",
    [
        [7],
        [{**GOOD, "rank": 4}],
        [{**GOOD, "rank": "3"}],
        [{**GOOD, "over_s": 0}],
        [{**GOOD, "over_s": 1e-9}],
        [{**GOOD, "over_s": float("nan")}],
        [{**GOOD, "sums": [1]}],
        [{**GOOD, "sums": {"run_s": "1"}}],
        [{**GOOD, "sums": {"run_s": float("inf")}}],
        [{**GOOD, "cores": "many"}],
    ],
)
def test_an_agent_that_answers_nonsense_is_not_believed(answer: Any) -> None:
    assert windows([GOOD], "b", frozenset({3}))
    with pytest.raises(ValueError, match="no valid"):
        windows(answer, "b", frozenset({3}))
