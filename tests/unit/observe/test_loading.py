"""The time that the training loop waits for data."""

from __future__ import annotations

import threading

import pytest

from hvdlite.observe import loading as module
from hvdlite.observe.loading import Loading


class Clock:
    """A clock that shows what the test sets."""

    def __init__(self) -> None:
        self.now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "monotonic", lambda: found.now)
    return found


def test_calls_add_up_and_return_what_they_did(clock: Clock) -> None:
    loading = Loading()

    @loading.timed
    def load(seconds: float) -> float:
        clock.now += seconds
        return -seconds

    assert (load(2.0), load(seconds=0.5)) == (-2.0, -0.5)
    clock.now += 9.0
    assert loading.seconds(clock.now) == 2.5


def test_a_call_inside_another_one_counts_once(clock: Clock) -> None:
    loading = Loading()

    @loading.timed
    def load(depth: int) -> None:
        clock.now += 1.0
        if depth:
            load(depth - 1)

    load(3)
    assert loading.seconds(clock.now) == 4.0


def test_a_call_that_raises_counts_too(clock: Clock) -> None:
    loading = Loading()

    @loading.timed
    def load() -> None:
        clock.now += 1.0
        raise StopIteration

    for _ in range(2):
        with pytest.raises(StopIteration):
            load()
    assert loading.seconds(clock.now) == 2.0


def test_a_call_that_goes_on_counts_so_far(clock: Clock) -> None:
    loading = Loading()
    seen = []

    @loading.timed
    def load() -> None:
        clock.now += 3.0
        seen.append(loading.seconds(clock.now))

    load()
    load()
    assert seen == [3.0, 6.0]


def test_another_thread_loads_ahead_and_costs_nothing(clock: Clock) -> None:
    loading = Loading()

    @loading.timed
    def load() -> None:
        clock.now += 1.0

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert loading.seconds(clock.now) == 0.0
    load()
    assert loading.seconds(clock.now) == 1.0
    loading.thread = None  # another one trains now
    load()
    assert loading.seconds(clock.now) == 1.0
