"""The stall watch, with a clock that the test moves."""

from __future__ import annotations

import json

import pytest

from hvdlite.blackbox.format import FINDING_BYTES, Finding
from hvdlite.negotiation.delays.circle import Wait
from hvdlite.negotiation.delays.stall import StallWatch


def test_a_late_tensor_is_reported_once_and_then_fatal() -> None:
    watch = StallWatch(warn_s=10, fatal_s=30)
    waiting = {"loss": Wait((1, 3), (0, 2))}
    told = {}
    for now in range(100, 131):
        report = watch.check(waiting, float(now))
        if report.warning:
            told[now] = report
        if report.fatal:
            assert now == 130
            assert report.fatal == ((1, "loss"), (3, "loss"))
            assert report.waited_s == 30
    assert list(told) == [110]
    assert "waiting for 10 s: rank(s) 1, 3 did not submit loss (0, 2 did)." in told[110].warning
    assert told[110].facts == (10.0, [(["loss"], 1, [(1, 1), (3, 3)], [(0, 0), (2, 2)])], [])


def test_a_tensor_that_came_in_time_starts_anew() -> None:
    watch = StallWatch(warn_s=10, fatal_s=0)
    a = {"a": Wait((1,), (0,))}
    watch.check(a, 0.0)
    watch.check({}, 9.0)
    assert not watch.check(a, 11.0).warning
    assert watch.check(a, 21.0).warning


def test_the_next_stall_is_reported_too() -> None:
    watch = StallWatch(warn_s=10, fatal_s=0)
    a = {"a": Wait((1,), (0,))}
    for begun in (0.0, 100.0):
        watch.check(a, begun)
        assert watch.check(a, begun + 10).warning
        assert not watch.check(a, begun + 20).warning
        watch.check({}, begun + 21)


def _warned(steps: list[dict[str, Wait]]) -> list[int]:
    """The seconds at which a watch of 10 s warns, given what waits in each second."""
    watch = StallWatch(warn_s=10, fatal_s=0)
    return [now for now, waiting in enumerate(steps) if watch.check(waiting, float(now)).warning]


def test_another_name_that_waits_for_the_same_ranks_is_the_same_stall() -> None:
    a, b = {"a": Wait((1,), (0, 2))}, {"b": Wait((1,), (0, 2))}
    assert _warned([a] * 15 + [a | b] * 15 + [b] * 30) == [10]


def test_that_other_ranks_are_missing_is_news() -> None:
    both, one = {"a": Wait((1, 2), (0,))}, {"a": Wait((2,), (0, 1))}
    assert _warned([both] * 20 + [one] * 20) == [10, 20]


def test_what_waits_for_a_moment_beside_a_stall_is_no_news() -> None:
    stall, passing = {"a": Wait((1,), (0, 2))}, [{f"x{step}": Wait((step % 3,), ())} for step in range(60)]
    assert _warned([stall | other for other in passing]) == [10]


@pytest.mark.parametrize("later", [0, 3, 9, 12])
def test_ranks_that_wait_for_each_other_are_told_so(later: int) -> None:
    """Also if one of them began to wait after the other; too late for the first report, there is another one."""
    a, b = {"a": Wait((1,), (0,))}, {"b": Wait((0,), (1,))}
    watch = StallWatch(warn_s=10, fatal_s=0)
    told = [watch.check(a if now < later else a | b, float(now)) for now in range(60)]
    reports = [report for report in told if report.warning]
    assert len(reports) == (1 if later < 9 else 2)
    assert reports[-1].facts.circle == [(0, "a"), (1, "b")]
    assert (
        "ranks wait for each other: rank 0 for 'a', which rank 1 did not submit; "
        "rank 1 for 'b', which rank 0 did not submit. Make each of these calls on all ranks (" in reports[-1].warning
    )


def test_a_circle_of_three() -> None:
    waiting = {"a": Wait((1,), (0,)), "x": Wait((3,), (0, 1, 2)), "b": Wait((2,), (1,)), "c": Wait((0, 3), (2,))}
    watch = StallWatch(warn_s=10, fatal_s=0)
    watch.check(waiting, 0.0)
    assert watch.check(waiting, 10.0).facts.circle == [(0, "a"), (1, "b"), (2, "c")]
    watch = StallWatch(warn_s=10, fatal_s=0)
    del waiting["b"]
    watch.check(waiting, 0.0)
    assert watch.check(waiting, 10.0).facts.circle == []


def test_many_names_are_not_all_listed() -> None:
    watch = StallWatch(warn_s=1, fatal_s=0)
    waiting = {f"t{index}": Wait((2,), (0, 1)) for index in range(500)}
    watch.check(waiting, 0.0)
    text = watch.check(waiting, 1.0).warning
    assert "t0, t1, t2, t3, t4, t5 and 494 more" in text
    assert len(text) < 400


def test_the_facts_of_a_large_job_fit_into_its_black_box() -> None:
    watch = StallWatch(warn_s=1, fatal_s=0)
    waiting = {
        f"{'ü' * 500}{index}": Wait(tuple(range(index % 2, 4096, 2)), tuple(range(1 - index % 2, 4096, 2)))
        for index in range(500)
    }
    watch.check(waiting, 0.0)
    assert len(json.dumps(watch.check(waiting, 1.0).facts)) < 12_000


def test_switched_off_it_asks_for_no_time() -> None:
    assert StallWatch(0, 0).interval_s is None
    assert StallWatch(60, 0).interval_s == 6


def test_the_warning_of_a_large_job_is_short() -> None:
    """It has to fit into a black box, whose agent may then ask for stacks."""
    watch = StallWatch(10.0, 0.0)
    waiting = {
        f"{'ä' * 2000} {number}": Wait(tuple(range(number, 1024, 7)), tuple(range(1024)[: number + 1]))
        for number in range(20)
    }
    watch.check(waiting, 0.0)
    report = watch.check(waiting, 10.0)
    assert "and 16 other sets of ranks" in report.warning
    assert len(json.dumps(Finding("stall", report.warning, report.facts._asdict()))) < FINDING_BYTES


def test_ranges_of_ranks_are_shown_as_such() -> None:
    watch = StallWatch(10.0, 0.0)
    waiting = {"loss": Wait((*range(1, 9), 11), (0, 9, 10))}
    watch.check(waiting, 0.0)
    assert "rank(s) 1-8, 11 did not submit loss (0, 9, 10 did)" in watch.check(waiting, 10.0).warning
