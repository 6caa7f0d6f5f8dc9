"""Which signals of a scheduler an agent has to pass on."""

from __future__ import annotations

from signal import SIGTERM, SIGUSR1

import pytest

from hvdlite.launcher.agent.ending.scheduler import Scheduler


@pytest.mark.parametrize("sent_at", [99.6, 100.0, 100.4])
def test_what_all_processes_got_is_not_passed_on(sent_at: float) -> None:
    scheduler = Scheduler()
    if sent_at < 100.0:
        scheduler.sent(SIGUSR1, sent_at)
    scheduler.sent_to_guard(SIGUSR1, 100.0)
    if sent_at >= 100.0:
        scheduler.sent(SIGUSR1, sent_at)
    assert scheduler.missed(101.0) == []


def test_what_only_the_guard_got_is_passed_on_once() -> None:
    scheduler = Scheduler()
    scheduler.sent(SIGUSR1, 90.0)  # another one, long ago
    scheduler.sent_to_guard(SIGUSR1, 100.0)
    due = scheduler.due
    assert due is not None
    assert (scheduler.missed(due - 0.01), scheduler.missed(due), scheduler.missed(due + 1)) == ([], [SIGUSR1], [])
    assert scheduler.due is None


@pytest.mark.parametrize("comes", [False, True])
def test_the_agent_sends_the_sigterm_that_the_scheduler_does_not(comes: bool) -> None:
    scheduler = Scheduler()
    assert not scheduler.must_terminate(100.0)
    scheduler.terminate(100.0)
    assert not scheduler.must_terminate(100.1)
    if comes:
        scheduler.sent(SIGTERM, 100.2)
    assert [scheduler.must_terminate(now) for now in (101.0, 102.0)] == [not comes, False]


def test_the_time_of_sigterm_is_that_of_the_only_one() -> None:
    scheduler = Scheduler()
    at = scheduler.terminates_at(100.0)
    assert (at, scheduler.due, scheduler.terminates_at(100.2)) == (scheduler.due, at, at)
    scheduler.sent(SIGTERM, 100.3)
    assert scheduler.terminates_at(101.0) == 100.3
