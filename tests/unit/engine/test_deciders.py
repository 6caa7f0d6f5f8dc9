"""When the root decides, and what it finds out about ranks that are late, at times that the test chooses."""

from __future__ import annotations

import logging
from unittest.mock import Mock

import pytest

from hvdlite.blackbox.format import Finding
from hvdlite.engine.deciders.root import RootDecider
from hvdlite.engine.inflight import InFlight
from hvdlite.engine.observer import Observer
from hvdlite.negotiation.delays.arrival import UNKNOWN
from hvdlite.negotiation.delays.straggler import Straggler
from hvdlite.negotiation.messages import BARRIER_NAME, End, EndKind, Ready, Run, Tuning
from hvdlite.negotiation.wire import MAX_BYTES
from hvdlite.settings import Settings
from tests.harness.members import member
from tests.unit.replicas import request

END = End(EndKind.FAILED, 1, "b", "out of memory")


class Root:
    """The decider of rank 0 of three, with what it sent and found."""

    def __init__(self, **options: float | int | bool) -> None:
        self.link = Mock()
        self.observer = Observer(InFlight(lambda: None), [0, 1, 2])
        self.found: list[Finding] = []
        self.observer.on_finding = lambda finding: not self.found.append(finding)
        self.decider = RootDecider(member(0, "abc"), Settings(**options), self.link, self.observer)

    def submit(self, name: str, *ranks: int, now: float = 0.0) -> None:
        ready = Ready(0, 0, (request(name),))
        for rank in ranks:
            if rank == 0:
                self.decider.submit(ready, now)
            else:
                self.decider.receive(rank, ready, now)

    def names(self, now: float, has_room: bool = True) -> list[str]:
        """The tensors that the root decides to run."""
        return [
            response.name
            for run in self.decider.decisions(has_room, now)
            if isinstance(run, Run)
            for batch in run.batches
            for response in batch.responses
        ]


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "hvdlite")


def test_nothing_is_decided_before_all_have_submitted_or_without_room() -> None:
    root = Root()
    root.submit("a", 0, 1)
    assert root.names(1.0) == []
    assert not root.decider.has_agreed
    root.submit("a", 2)
    assert root.decider.has_agreed
    assert root.names(1.0, has_room=False) == []
    root.link.send.assert_not_called()
    assert root.names(1.0) == ["a"]
    assert root.names(1.0) == []
    assert root.link.send.call_count == 1


# ---- the hold-off


def test_agreed_tensors_are_held_back_for_the_cycle_time_and_fuse() -> None:
    root = Root(cycle_time=500.0, stall_check_disable=True)
    assert root.names(9.0) == []
    assert root.decider.due is None
    root.submit("a", 0, 1, 2)
    assert root.names(10.0) == []
    assert root.decider.due == 10.5
    root.submit("b", 0, 1, 2)
    assert root.names(10.4) == []
    assert root.decider.due == 10.5
    assert root.names(10.5) == ["a", "b"]
    assert root.decider.due is None
    root.submit("c", 0, 1, 2)
    assert root.names(20.0) == []
    assert root.decider.due == 20.5


def test_the_hold_off_begins_when_there_is_room_and_no_timer_runs_without_room() -> None:
    root = Root(cycle_time=500.0, stall_check_disable=True)
    root.submit("a", 0, 1, 2)
    assert root.names(10.0, has_room=False) == []
    assert root.decider.due is None
    assert root.names(11.0) == []
    assert root.decider.due == 11.5
    assert root.names(12.0, has_room=False) == []
    assert root.decider.due is None
    assert root.names(12.0) == ["a"]


def test_tensors_that_are_held_back_when_the_hold_off_ends_run_at_once() -> None:
    root = Root(cycle_time=500.0)
    root.submit("a", 0, 1, 2)
    assert root.names(10.0) == []
    root.decider.tune(Tuning(100))
    assert root.names(10.1) == ["a"]
    assert root.decider.due is None


# ---- tuning


def test_a_run_has_the_tuning_if_it_is_the_first_or_another_one() -> None:
    root = Root(fusion_threshold=64, cycle_time=0.0)
    tunings = []
    for step in range(5):
        if step == 2:
            root.decider.tune(Tuning(5, 0.0))
        root.submit(str(step), 0, 1, 2)
        (run,) = root.decider.decisions(True, 1.0)
        assert isinstance(run, Run)
        tunings.append(run.tuning)
    assert tunings == [Tuning(64), None, Tuning(5), None, None]


def test_a_fusion_threshold_above_all_tensors_can_be_sent() -> None:
    root = Root(fusion_threshold=1 << 100)
    root.submit("a", 0, 1, 2)
    (run,) = root.decider.decisions(True, 1.0)
    assert isinstance(run, Run)
    assert run.tuning == Tuning(MAX_BYTES)


# ---- ranks that are late


def test_a_stall_is_looked_for_ten_times_in_the_time_after_which_it_is_reported() -> None:
    root = Root(stall_check_time_seconds=10.0)
    root.submit("a", 0, 2)
    assert root.names(100.0) == []
    assert root.decider.due == 101.0
    assert root.names(100.5) == []
    assert root.decider.due == 101.0
    now = 101.0
    while not root.found:
        assert root.observer.missing == (1 if now > 101.0 else UNKNOWN)
        assert root.names(now) == []
        now += 1.0
        assert root.decider.due == now
    assert now == 112.0  # it was first seen at the first look
    (finding,) = root.found
    assert finding.kind == "stall"
    assert "rank(s) 1 did not submit a (0, 2 did)" in finding.text
    root.submit("a", 1)
    assert root.names(112.0) == ["a"]
    assert root.decider.due is None


def test_the_earlier_of_two_timers_counts() -> None:
    root = Root(stall_check_time_seconds=10.0, cycle_time=5000.0)
    root.submit("a", 0, 1, 2)
    root.submit("b", 0)
    assert root.names(100.0) == []
    assert root.decider.due == 101.0
    root = Root(stall_check_time_seconds=10.0, cycle_time=500.0)
    root.submit("a", 0, 1, 2)
    root.submit("b", 0)
    assert root.names(100.0) == []
    assert root.decider.due == 100.5


def test_a_stall_that_is_fatal_ends_the_group() -> None:
    root = Root(stall_check_disable=True, stall_shutdown_time_seconds=10.0)
    root.submit("a", 0, 2)
    decided = [each for now in range(100, 113) for each in root.decider.decisions(True, float(now))]
    end = End(EndKind.STALLED, 1, "b", "", 10.0, ((1, "a"),))
    assert decided == [end]
    root.link.send.assert_called_once_with(end)
    assert root.decider.due is None


def test_nothing_is_looked_for_if_all_limits_are_off() -> None:
    root = Root(stall_check_disable=True)
    root.submit("a", 0)
    assert root.names(100.0) == []
    assert root.decider.due is None


def test_a_straggler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root()
    seen = []
    named = Straggler("rank 2 is late", 2, "a", 8, 0.1, None, 0.5, 4.0, "before")

    def ran(*arguments: object) -> Straggler:
        seen.append(arguments)
        return named

    monkeypatch.setattr(root.decider._stragglers, "ran", ran)
    root.submit("a", 0, 1, now=1.0)
    root.submit("a", 2, now=3.0)
    assert root.names(4.0) == ["a"]
    assert root.found == [Finding("straggler", named.text, named._asdict())]
    assert [arguments[:4] for arguments in seen] == [(0, 1, (0, 1.0, 2, 3.0, 2.0), 4.0)]


def test_a_barrier_ends_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    root, seen = Root(), []
    monkeypatch.setattr(root.decider._stragglers, "ran", lambda generation, bits, *rest: seen.append(bits))
    for _ in range(2):
        root.submit(BARRIER_NAME, 0, 1, 2, now=1.0)
        root.submit("a", 0, 1, 2, now=1.0)
        assert root.names(1.0) == [BARRIER_NAME, "a"]
    assert seen == [0b10, 0b10]


# ---- the end


def test_an_end_is_decided_once_and_nothing_after_it() -> None:
    root = Root(cycle_time=500.0)
    root.submit("a", 0, 1, 2)
    assert root.names(1.0) == []
    root.decider.receive(1, END, 1.0)
    root.link.send.assert_called_once_with(END)
    root.submit("b", 0, 1, 2)
    assert not root.decider.has_agreed
    assert root.decider.decisions(True, 9.0) == [END]
    assert root.decider.decisions(True, 9.0) == []
    assert root.decider.due is None


def test_later_ends_are_sent_to_all_too() -> None:
    root = Root()
    left = END._replace(kind=EndKind.LEFT, rank=2)
    root.decider.end(END)
    root.decider.receive(2, left, 1.0)
    assert [call.args[0] for call in root.link.send.call_args_list] == [END, left]
    assert root.decider.decisions(True, 1.0) == [END, left]
