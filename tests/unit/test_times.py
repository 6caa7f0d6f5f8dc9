"""The line about where the time of a job went, from what its ranks had spent."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.observe.blackbox import Gauge
from hvdlite.observe.times import Slowest, Spent, Stay, describe, spent

NOTHING = Spent(batches=7, inside_s=0, ending_s=0, waiting_s=0, moving_s=0, loading_s=0, latest_rank=0, latest_rank_s=0)
_PART = re.compile(r"([a-z][a-z0-9 ]*?) (\d+) %")


def _stay(before_end_s: float = 0.0, **spent: float) -> Stay:
    return Stay(NOTHING._replace(**spent), before_end_s)


def _line(*stays: Stay, wall_s: float = 100.0, cause: str = "", others: int = 1) -> str:
    return describe(stays, wall_s, lambda rank: Slowest(rank, f"node{rank}", cause), others)


def test_the_example_of_the_manual() -> None:
    fast = _stay(inside_s=812, waiting_s=152, moving_s=73, loading_s=49)
    root = _stay(inside_s=812, waiting_s=152, moving_s=73, loading_s=49, latest_rank=3, latest_rank_s=3 * 140)
    slow = _stay(inside_s=812, moving_s=73, loading_s=49)
    assert _line(root, fast, fast, slow, wall_s=812, cause="throttled by its cgroup") == (
        "time 812 s: compute 71 %, waiting for rank 3 14 %, communication not hidden 9 %, data loading 6 %; "
        "slowest rank 3 on node3 (throttled by its cgroup)"
    )


def test_the_shares_are_means_over_the_ranks() -> None:
    assert _line(_stay(inside_s=100, loading_s=40), _stay(inside_s=100)) == (
        "time 100 s: compute 80 %, data loading 20 %"
    )


def test_outside_of_its_session_a_rank_starts_and_ends() -> None:
    line = _line(_stay(inside_s=60, ending_s=5, before_end_s=15), wall_s=100)
    assert line == "time 100 s: compute 60 %, starting 20 %, ending 20 %"


@pytest.mark.parametrize(
    ("waiting_s", "latest_s", "named"),
    [(30, 30, True), (30, 21, True), (30, 19, False), (30, 0, False), (4, 4, False)],
)
def test_a_rank_is_named_that_caused_most_of_much_waiting(waiting_s: float, latest_s: float, named: bool) -> None:
    line = _line(
        _stay(inside_s=100, waiting_s=waiting_s, latest_rank=1, latest_rank_s=latest_s),
        _stay(inside_s=100, waiting_s=0),
        wall_s=100,
    )
    assert ("waiting for rank 1" in line, "slowest rank 1 on node1" in line) == (named, named)
    assert named or f"waiting for each other {waiting_s // 2} %" in line


def test_the_roots_of_several_groups_are_added_up() -> None:
    roots = [
        _stay(inside_s=100, waiting_s=20, latest_rank=3, latest_rank_s=30),
        _stay(inside_s=100, waiting_s=20, latest_rank=2, latest_rank_s=20),
        _stay(inside_s=100, waiting_s=20, latest_rank=2, latest_rank_s=20),
    ]
    assert "slowest rank 2 on node2" in _line(*roots)


def test_rank_0_alone_speaks_for_the_others() -> None:
    own = _stay(inside_s=100, waiting_s=20, latest_rank=2, latest_rank_s=55)
    assert "waiting for rank 2 20 %; slowest rank 2 on node2" in _line(own, others=3)
    assert "waiting for each other 20 %" in _line(own, others=7)


def test_a_rank_alone_waits_for_nobody() -> None:
    assert _line(_stay(inside_s=100, waiting_s=20, moving_s=10), others=0) == (
        "time 100 s: compute 70 %, communication not hidden 30 %"
    )


def test_a_short_job_and_one_without_collectives_have_none() -> None:
    assert _line(_stay(inside_s=1.9), wall_s=1.99) == ""
    assert _line(_stay(inside_s=1.9), wall_s=2.0) != ""
    assert _line(_stay(inside_s=50, batches=0), wall_s=60) == ""
    assert describe([], 60.0, lambda rank: Slowest(rank, "a"), 1) == ""


_SECONDS = st.floats(0, 1e9)


@given(
    st.lists(st.builds(Stay, st.builds(Spent, *[_SECONDS] * 8), st.floats(-1e9, 1e9)), min_size=1, max_size=5),
    st.floats(2, 1e9),
)
def test_whatever_was_told_the_shares_add_up_to_100(stays: list[Stay], wall_s: float) -> None:
    line = describe([Stay(stay.spent._replace(batches=1), stay.before_end_s) for stay in stays], wall_s, _nowhere, 1)
    parts = _PART.findall(line)
    assert sum(int(percent) for _, percent in parts) == 100
    assert 1 <= len(parts) <= 6


def _nowhere(rank: int) -> Slowest:
    return Slowest(rank, "nowhere")


# ---- from the gauges of a rank


def _spent(ended_at: float = 200.0, **gauges: float) -> Spent:
    return spent(lambda gauge: gauges.get(gauge.name.lower(), 0.0), ended_at)


def test_the_session_lasts_until_shutdown_or_the_end_of_the_process() -> None:
    assert _spent(joined_at=110.0, left_at=190.0)[1:3] == (80.0, 10.0)
    assert _spent(joined_at=110.0)[1:3] == (90.0, 0.0)
    assert _spent(joined_at=110.0, left_at=190.0, earlier_s=50.0)[1:3] == (130.0, 10.0)
    assert _spent()[1:3] == (0.0, 0.0)


def test_what_it_waited_is_divided() -> None:
    assert _spent(joined_at=1.0, waited_s=30.0, unagreed_s=20.0, loading_s=5.0)[3:6] == (20.0, 10.0, 5.0)


@given(st.fixed_dictionaries({gauge: st.floats(allow_nan=False, allow_infinity=False) for gauge in Gauge}))
def test_whatever_a_rank_wrote_its_times_are_sensible(gauges: dict[Gauge, float]) -> None:
    assert all(0 <= each <= 1e9 and math.isfinite(each) for each in spent(gauges.__getitem__, 100.0))
