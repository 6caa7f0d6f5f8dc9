"""What a rank's Python loses to itself: the time of collections, and waits for the GIL."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from hvdlite.metrics.table import COLLECTED_S, GIL_LATE_S, GIL_SLEEPS
from hvdlite.observe.interpreter import Interpreter
from tests.harness.patience import until

_SWITCH_S = 0.005  # the interpreter's interval


@pytest.fixture
def interpreter() -> Iterator[Interpreter]:
    made = Interpreter()
    yield made
    made.close()


def test_collections_are_counted_until_it_is_closed(interpreter: Interpreter) -> None:
    kept = [[number] for number in range(100_000)]
    gc.collect()
    collected_s = interpreter.quantities()[COLLECTED_S]
    assert collected_s > 0
    gc.collect()
    assert interpreter.quantities()[COLLECTED_S] > collected_s
    interpreter.close()
    collected_s = interpreter.quantities()[COLLECTED_S]
    gc.collect()
    assert interpreter.quantities()[COLLECTED_S] == collected_s
    interpreter.close()
    assert len(kept) == 100_000


def test_a_program_that_removes_all_callbacks_is_none_of_our_business(interpreter: Interpreter) -> None:
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    try:
        interpreter.close()
    finally:
        gc.callbacks[:] = [each for each in callbacks if each.__qualname__ != "Interpreter._collect"]


def test_a_thread_that_computes_in_python_makes_others_wait_for_the_gil(interpreter: Interpreter) -> None:
    is_over = threading.Event()

    def compute() -> None:
        while not is_over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:

        def late_s() -> float:
            for _ in range(10):
                assert not interpreter.sleep(0.001, threading.Event())
            found = interpreter.quantities()
            return found[GIL_LATE_S] / found[GIL_SLEEPS]

        until(lambda: late_s() > _SWITCH_S / 4)
    finally:
        is_over.set()
        thread.join()


def test_a_sleep_ends_at_once_when_it_is_closed(interpreter: Interpreter) -> None:
    closed = threading.Event()
    closed.set()
    assert interpreter.sleep(3600.0, closed)
    assert interpreter.quantities()[GIL_SLEEPS] == 0
