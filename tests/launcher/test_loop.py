"""A function in a turn of the loop that replaces descriptors of the others."""

from __future__ import annotations

import os

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
