"""What hvdrun makes of the times that agents report."""

from __future__ import annotations

import pytest

from hvdlite.blackbox.times import Spent
from hvdlite.launcher.reports.times import Times

HOSTS = {0: "node1", 1: "node2"}
FAST = Spent(9, inside_s=80, ending_s=0, waiting_s=30, moving_s=0, loading_s=0, latest_rank=1, latest_rank_s=30)
SLOW = Spent(9, inside_s=80, ending_s=0, waiting_s=0, moving_s=0, loading_s=0, latest_rank=0, latest_rank_s=0)


def _line(cause: str = "", ended_at: float = 200.0) -> str:
    times = Times(HOSTS, 100.0, lambda rank: cause if rank == 1 else "another's")
    times.ended(0, FAST, ended_at, 200.0)
    times.ended(1, SLOW, 200.0, 200.0)
    return times.line(200.0)


def test_the_slowest_rank_is_said_with_its_host_and_what_held_it_up() -> None:
    line = "time 100 s: compute 65 %, waiting for rank 1 15 %, starting 20 %; slowest rank 1 on node2"
    assert _line() == line
    assert _line("loading data") == f"{line} (loading data)"


@pytest.mark.parametrize(("ended_at", "ending"), [(190.0, 5), (50.0, 0), (1e9, 0), (float("nan"), 0)])
def test_a_rank_that_ended_at_an_impossible_time_ended_just_now(ended_at: float, ending: int) -> None:
    assert ("ending 5 %" in _line(ended_at=ended_at)) == bool(ending)


def test_a_rank_of_which_nothing_is_known_is_left_out() -> None:
    times = Times(HOSTS, 100.0, lambda rank: "")
    times.ended(0, None, 200.0, 200.0)
    assert times.line(200.0) == ""
    times.ended(1, SLOW, 200.0, 200.0)
    assert times.line(200.0) == "time 100 s: compute 80 %, starting 20 %"


def test_a_rank_that_is_not_of_the_job_is_not_named() -> None:
    times = Times(HOSTS, 100.0, lambda rank: "")
    times.ended(0, FAST._replace(latest_rank=7), 200.0, 200.0)
    assert times.line(200.0) == "time 100 s: compute 50 %, waiting for each other 30 %, starting 20 %"
