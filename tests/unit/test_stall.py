"""The stall watch, with a clock that the test moves."""

from __future__ import annotations

from hvdlite.negotiation.delays.stall import StallWatch


def test_a_late_tensor_is_reported_again_and_again_and_then_fatal() -> None:
    watch = StallWatch(warn_s=10, fatal_s=30)
    waiting = {"loss": (1, 3)}
    told = {}
    for now in range(100, 131):
        report = watch.check(waiting, float(now))
        if report.warning:
            told[now] = report.warning
        if report.fatal:
            assert now == 130
            assert report.fatal == ((1, "loss"), (3, "loss"))
            assert report.waited_s == 30
    assert list(told) == [110, 120, 130]
    assert "waiting for 10 s: rank(s) 1, 3 did not submit loss." in told[110]


def test_a_tensor_that_came_in_time_starts_anew() -> None:
    watch = StallWatch(warn_s=10, fatal_s=0)
    watch.check({"a": (1,)}, 0.0)
    watch.check({}, 9.0)
    assert not watch.check({"a": (1,)}, 11.0).warning
    assert watch.check({"a": (1,)}, 21.0).warning


def test_many_names_are_not_all_listed() -> None:
    watch = StallWatch(warn_s=1, fatal_s=0)
    waiting = {f"t{index}": (2,) for index in range(500)}
    watch.check(waiting, 0.0)
    text = watch.check(waiting, 1.0).warning
    assert "t0, t1, t2, t3, t4, t5 and 494 more" in text
    assert len(text) < 300


def test_switched_off_it_asks_for_no_time() -> None:
    assert StallWatch(0, 0).interval_s is None
    assert StallWatch(60, 0).interval_s == 6
