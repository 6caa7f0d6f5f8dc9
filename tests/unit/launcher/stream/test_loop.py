"""Functions in a turn of the loop: those of timers, and one that replaces descriptors of the others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from hvdlite.launcher.stream.loop import Loop


def test_a_descriptor_that_takes_the_number_of_a_closed_one_is_not_taken_for_it() -> None:
    loop, called = Loop(), []
    (first, to_first), (second, to_second), (third, to_third) = os.pipe(), os.pipe(), os.pipe()
    numbers = {"first": first, "second": second}

    def replace_the(other: str) -> None:
        called.append("one")
        for number in numbers.values():
            loop.unwatch(number)
        os.dup2(third, numbers[other])
        loop.watch(numbers[other], lambda: called.append("new"))

    loop.watch(first, lambda: replace_the("second"))
    loop.watch(second, lambda: replace_the("first"))
    os.write(to_first, b"x")
    os.write(to_second, b"x")
    loop.turn(0)  # both are ready: the function of one replaces the other
    assert called == ["one"]
    os.write(to_third, b"x")
    loop.turn(0)
    assert called == ["one", "new"]
    loop.close()
    for number in (first, to_first, second, to_second, third, to_third):
        os.close(number)


def named(name: str, called: list[str]) -> Callable[[], None]:
    return lambda: called.append(name)


def test_timers_that_are_due_fire_once_in_the_order_of_their_times() -> None:
    loop, called = Loop(), list[str]()
    now = time.monotonic()
    for ago_s, name in ((1, "second"), (2, "first"), (-3600, "never")):
        loop.at(now - ago_s, named(name, called))
    for _ in range(2):
        loop.turn(now)
        assert called == ["first", "second"]
    loop.close()


def test_a_turn_lasts_until_the_first_timer() -> None:
    loop, called = Loop(), list[str]()
    loop.at(time.monotonic() + 3600, named("late", called))
    timer = loop.at(None, named("moved", called))
    loop.turn(0)
    assert (called, timer.is_set) == ([], False)
    timer.move(due := time.monotonic() + 0.05)
    loop.turn()
    assert (called, timer.is_set) == (["moved"], False)
    assert time.monotonic() >= due
    loop.close()


def test_what_is_called_before_a_timer_may_move_it() -> None:
    loop, called = Loop(), list[str]()
    read, written = os.pipe()
    os.write(written, b"x")
    now = time.monotonic()
    one, other = loop.at(now - 1, named("one", called)), loop.at(now, named("other", called))
    loop.watch(read, lambda: one.move(None))
    loop.at(now - 2, lambda: other.move(now + 3600))
    loop.turn()
    assert (called, one.is_set, other.is_set) == ([], False, True)
    loop.close()
    os.close(read)
    os.close(written)
