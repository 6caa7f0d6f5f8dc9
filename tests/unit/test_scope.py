"""Scopes: deadlines on a clock that the test sets, and cancellation."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable

import pytest

from hvdlite import scope as module
from hvdlite.net.poll import wait_readable
from hvdlite.scope import Cancelled, Scope
from tests.harness.patience import PATIENCE_S


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_scope_counts_down_to_its_deadline(clock: Clock) -> None:
    scope = Scope.of(5.0)
    assert (scope.deadline, scope.left_s, scope.timeout_s, scope.is_over) == (105.0, 5.0, 5.0, False)
    clock.now = 104.0
    assert (scope.left_s, scope.is_over) == (1.0, False)
    for clock.now in (105.0, 200.0):
        assert (scope.left_s, scope.timeout_s, scope.is_over) == (0.0, 0.0, True)


def test_a_scope_may_have_no_deadline(clock: Clock) -> None:
    scope = Scope()
    clock.now = 1e9
    assert (scope.left_s, scope.timeout_s, scope.is_over) == (math.inf, None, False)


def test_an_inner_scope_ends_no_later_than_its_outer_one(clock: Clock) -> None:
    outer = Scope.of(5.0)
    assert Scope.of(3.0, outer).deadline == 103.0
    assert Scope.of(9.0, outer).deadline == outer.deadline
    assert Scope(within=outer).deadline == outer.deadline
    assert outer.later(2.0).deadline == 107.0


def test_a_pause_is_short_enough_to_see_a_cancellation_and_no_longer_than_the_scope(clock: Clock) -> None:
    scope = Scope.of(1000.0)
    assert 0.0 < scope.pause_s() <= 1.0
    clock.now = scope.deadline - 1e-3
    assert scope.pause_s() == pytest.approx(1e-3)
    clock.now = scope.deadline
    assert scope.pause_s() == 0.0


@pytest.mark.parametrize(
    "inner",
    [
        pytest.param(lambda outer: outer, id="itself"),
        pytest.param(lambda outer: Scope.of(1.0, outer), id="within"),
        pytest.param(lambda outer: Scope(within=Scope(within=outer), watch=str), id="within one within"),
        pytest.param(lambda outer: outer.later(1.0), id="later"),
    ],
)
def test_cancelling_a_scope_cancels_those_within_it(inner: Callable[[Scope], Scope]) -> None:
    outer = Scope()
    scope = inner(outer)
    scope.check()
    assert scope.cancelled == ""
    outer.cancel("it was interrupted")
    outer.cancel("another reason")
    assert scope.cancelled == "it was interrupted"
    for waits in (scope.check, scope.pause_s):
        with pytest.raises(Cancelled, match="^it was interrupted$"):
            waits()


def test_cancelling_an_inner_scope_leaves_the_outer_one_alone() -> None:
    outer = Scope()
    inner, later = Scope(within=outer), outer.later(1.0)
    inner.cancel("no longer wanted")
    later.cancel("neither")
    outer.check()


def test_what_is_watched_is_asked_until_it_has_a_reason() -> None:
    answers = iter(["", "", "rank 2 has left"])
    scope = Scope(watch=lambda: next(answers))
    scope.check()
    scope.check()
    assert [scope.cancelled, scope.cancelled] == ["rank 2 has left"] * 2  # and not asked again


def test_a_scope_that_is_cancelled_while_it_asks_what_it_watches_stays_cancelled() -> None:
    def watch() -> str:
        scope.cancel("the caller was interrupted")  # as another thread may at this moment
        return ""

    scope = Scope(watch=watch)
    assert scope.cancelled == "the caller was interrupted"
    with pytest.raises(Cancelled, match="^the caller was interrupted$"):
        Scope(within=scope).check()


def test_a_cancellation_is_no_exception_that_a_handler_could_take_for_a_failure() -> None:
    assert not issubclass(Cancelled, Exception)


def test_waiting_for_a_socket_ends_with_data_or_its_end_or_at_the_deadline() -> None:
    one, other = socket.socketpair()
    with one, other:
        with pytest.raises(TimeoutError):
            wait_readable(one, Scope.of(0.01))
        other.send(b"x")
        wait_readable(one, Scope.of(0.0))  # what has come counts after the deadline too
        assert one.recv(1) == b"x"
        other.close()
        wait_readable(one, Scope.of(PATIENCE_S))
        assert one.recv(1) == b""


def test_what_has_come_counts_although_the_scope_was_cancelled() -> None:
    one, other = socket.socketpair()
    scope = Scope()
    scope.cancel("no longer wanted")
    with one, other:
        other.send(b"x")
        wait_readable(one, scope)
        one.recv(1)
        with pytest.raises(Cancelled):
            wait_readable(one, scope)


def test_another_thread_ends_a_wait() -> None:
    one, other = socket.socketpair()
    asked = threading.Event()
    scope = Scope(watch=lambda: asked.set() or "")  # type: ignore[func-returns-value]

    def cancel() -> None:
        asked.wait(PATIENCE_S)  # so it waits already
        scope.cancel("the caller was interrupted")

    thread = threading.Thread(target=cancel)
    thread.start()
    with one, other, pytest.raises(Cancelled, match="the caller was interrupted"):
        wait_readable(one, scope)
    thread.join()
