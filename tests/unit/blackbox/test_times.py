"""The line about where the time of a job went, from what its ranks had spent."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.blackbox.format import Record
from hvdlite.blackbox.times import Spent, add_up, describe, divide, spent, spent_by
from hvdlite.metrics.table import LOADING_S, UNAGREED_S, WAITED_S, Quantity, by_name, of_ranks

NOTHING = Spent(batches=7, inside_s=0, ending_s=0, waiting_s=0, moving_s=0, loading_s=0, latest_rank=0, latest_rank_s=0)
_PART = re.compile(r"([a-z][a-z0-9 ]*?) (\d+) %")


def _rank(**spent: float) -> Spent:
    return NOTHING._replace(**spent)


def _line(*ranks: Spent, wall_s: float = 100.0, others: int = 1) -> str:
    return describe(ranks, wall_s, lambda rank: f"rank {rank} on node{rank}", others)


def test_the_example_of_the_manual() -> None:
    fast = _rank(inside_s=812, waiting_s=152, moving_s=73, loading_s=49)
    root = _rank(inside_s=812, waiting_s=152, moving_s=73, loading_s=49, latest_rank=3, latest_rank_s=3 * 140)
    slow = _rank(inside_s=812, moving_s=73, loading_s=49)
    assert _line(root, fast, fast, slow, wall_s=812) == (
        "time 812 s: compute 71 %, waiting for rank 3 14 %, communication not hidden 9 %, data loading 6 %; "
        "slowest rank 3 on node3"
    )


def test_the_shares_are_means_over_the_ranks() -> None:
    assert _line(_rank(inside_s=100, loading_s=40), _rank(inside_s=100)) == (
        "time 100 s: compute 80 %, data loading 20 %"
    )


def test_outside_of_its_session_a_rank_starts_and_ends() -> None:
    line = _line(_rank(inside_s=60, ending_s=20), wall_s=100)
    assert line == "time 100 s: compute 60 %, starting 20 %, ending 20 %"


@pytest.mark.parametrize(
    ("waiting_s", "latest_s", "named"),
    [(30, 30, True), (30, 21, True), (30, 19, False), (30, 0, False), (4, 4, False)],
)
def test_a_rank_is_named_that_caused_most_of_much_waiting(waiting_s: float, latest_s: float, named: bool) -> None:
    line = _line(
        _rank(inside_s=100, waiting_s=waiting_s, latest_rank=1, latest_rank_s=latest_s),
        _rank(inside_s=100, waiting_s=0),
        wall_s=100,
    )
    assert ("waiting for rank 1" in line, "slowest rank 1 on node1" in line) == (named, named)
    assert named or f"waiting for each other {waiting_s // 2} %" in line


def test_the_roots_of_several_groups_are_added_up() -> None:
    roots = [
        _rank(inside_s=100, waiting_s=20, latest_rank=3, latest_rank_s=30),
        _rank(inside_s=100, waiting_s=20, latest_rank=2, latest_rank_s=20),
        _rank(inside_s=100, waiting_s=20, latest_rank=2, latest_rank_s=20),
    ]
    assert "slowest rank 2 on node2" in _line(*roots)


def test_rank_0_alone_speaks_for_the_others() -> None:
    own = _rank(inside_s=100, waiting_s=20, latest_rank=2, latest_rank_s=55)
    assert "waiting for rank 2 20 %; slowest rank 2 on node2" in _line(own, others=3)
    assert "waiting for each other 20 %" in _line(own, others=7)


def test_a_rank_alone_waits_for_nobody() -> None:
    assert _line(_rank(inside_s=100, waiting_s=20, moving_s=10), others=0) == (
        "time 100 s: compute 70 %, communication not hidden 30 %"
    )


def test_a_short_job_and_one_without_collectives_have_none() -> None:
    assert _line(_rank(inside_s=1.9), wall_s=1.99) == ""
    assert _line(_rank(inside_s=1.9), wall_s=2.0) != ""
    assert _line(_rank(inside_s=50, batches=0), wall_s=60) == ""
    assert describe([], 60.0, str, 1) == ""


_SECONDS = st.floats(0, 1e9)


@given(st.lists(st.builds(Spent, *[_SECONDS] * 8), min_size=1, max_size=5), st.floats(2, 1e9))
def test_whatever_was_sent_the_shares_add_up_to_100(ranks: list[Spent], wall_s: float) -> None:
    line = describe([each._replace(batches=1) for each in ranks], wall_s, lambda rank: "nowhere", 1)
    parts = _PART.findall(line)
    assert sum(int(percent) for _, percent in parts) == 100
    assert 1 <= len(parts) <= 6


# ---- from the quantities of a rank


def _spent(ended_at: float = 200.0, **quantities: float) -> Spent:
    return spent_by({row: quantities.get(row.name, 0.0) for row in of_ranks()}, ended_at)


def test_the_session_lasts_until_shutdown_or_the_end_of_the_process() -> None:
    assert _spent(joined_at=110.0, left_at=190.0)[1:3] == (80.0, 10.0)
    assert _spent(joined_at=110.0)[1:3] == (90.0, 0.0)
    assert _spent(joined_at=110.0, left_at=190.0, earlier_s=50.0)[1:3] == (130.0, 10.0)
    assert _spent()[1:3] == (0.0, 0.0)


def test_what_it_waited_is_divided() -> None:
    assert _spent(joined_at=1.0, waited_s=30.0, unagreed_s=20.0, loading_s=5.0)[3:6] == (20.0, 10.0, 5.0)


@given(st.fixed_dictionaries({row: st.floats(allow_nan=False, allow_infinity=False) for row in of_ranks()}))
def test_whatever_a_rank_wrote_its_times_are_sensible(quantities: dict[Quantity, float]) -> None:
    assert all(0 <= each <= 1e9 and math.isfinite(each) for each in spent_by(quantities, 100.0))


# ---- from batches that were recorded


def _batch(
    agreed_at: float,
    moved_at: float,
    done_at: float,
    waited_s: float,
    last_rank: int = -1,
    late_s: float = 0.0,
    group: int = 0,
) -> Record:
    return Record(0, group, 1, 1, 8, 0.0, agreed_at, moved_at, done_at, waited_s, last_rank, late_s, 0, "x")


def test_what_is_added_up_of_batches_is_what_the_observer_counts() -> None:
    sums, late_s = add_up([_batch(10.0, 11.0, 12.0, 5.0), _batch(11.0, 12.0, 14.0, 2.0)])
    assert by_name(sums) == {"batches": 2, "moved_s": 3.0, "waited_s": 7.0, "unagreed_s": 3.0, "nbytes": 16}
    assert late_s == {}


def test_a_rank_is_late_once_for_each_decision() -> None:
    """The two batches of one decision waited for it together; those of another group did so by themselves."""
    late: dict[str, Any] = {"last_rank": 1, "late_s": 2.0}
    batches = [_batch(10.0, 11.0, 12.0, 0.0, **late), _batch(10.0, 12.0, 13.0, 0.0, **late)]
    batches += [_batch(10.0, 11.0, 12.0, 0.0, **late, group=1), _batch(20.0, 21.0, 22.0, 0.0, **late)]
    assert add_up(batches)[1] == {1: [2.0, 2.0, 2.0]}


def test_one_time_is_divided_into_classes_that_add_up_to_it() -> None:
    quantities = dict.fromkeys(of_ranks(), 0.0) | {WAITED_S: 30.0, UNAGREED_S: 20.0, LOADING_S: 5.0}
    assert divide(100.0, spent(quantities, 80.0, 2.0)) == (45.0, 20.0, 10.0, 5.0, 18.0, 2.0)
    assert divide(100.0, spent(quantities, 11.0)) == pytest.approx((0.0, 44 / 7, 22 / 7, 11 / 7, 89.0, 0.0))
