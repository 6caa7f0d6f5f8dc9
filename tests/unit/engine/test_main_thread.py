"""Waits and chained calls while the thread that works for the main one drives for a wait that was given up."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from hvdlite.engine.inflight import InFlight
from hvdlite.engine.main_thread import Drive, MainThreadDriver
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import Kind, Request
from hvdlite.net.wake import Bell
from hvdlite.scope import Scope
from hvdlite.tensors.dtypes import DType, Sum
from tests.harness.patience import PATIENCE_S

_GIVEN_UP = "given up"


class _Interrupt(BaseException):
    pass


def _entry(name: str) -> Entry:
    return Entry(Request(name, Kind.ALLREDUCE, DType.FLOAT32, (), Sum, 1.0, 1.0, 0, True), None)


class _Rank:
    """Whose ``drive`` only sleeps, and a ``wake`` upon which all is done but what was given up."""

    def __init__(self) -> None:
        self.in_flight = InFlight(lambda: None)
        self.driving = threading.Event()
        self.drives: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.main = MainThreadDriver(self.in_flight, self._drive, Mock(), self._wake, self._run)

    def submit(self, name: str) -> Entry:
        entry = _entry(name)
        self.in_flight.submit_all([entry], will_wait=True)
        return entry

    def _drive(self, drive: Drive) -> None:
        self.drives.put(drive.handle.name)
        self.driving.set()
        drive.sleep()

    def _run(self, entry: Entry) -> Entry:
        self.in_flight.submit_all([entry], will_wait=True)
        self.main.wait(entry)
        return entry

    def _wake(self) -> None:
        self.in_flight.finish([entry for entry in self.in_flight.take_new() if entry.name != _GIVEN_UP])


@pytest.fixture
def rank() -> Iterator[_Rank]:
    made = _Rank()
    yield made
    made.in_flight.finish(made.in_flight.all())
    made.main.stop(Scope.of(10))
    made.main.close()


class _Waiting(Bell):
    """The bell of a wait, and not the one on which the thread sleeps."""


def _give_up(rank: _Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(bell: Bell, timeout_s: float | None = None) -> None:
        rank.driving.wait()
        raise _Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(_Waiting, "wait", interrupt)
        rank.main._bells = [_Waiting()]
        entry = rank.submit(_GIVEN_UP)
        with pytest.raises(_Interrupt):
            rank.main.wait(entry)


def test_waits_behind_one_that_was_given_up_leave_nothing(rank: _Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    _give_up(rank, monkeypatch)
    waited = []
    for number in range(20):
        entry = rank.submit(f"{number}")
        rank.main.wait(entry)
        waited.append(weakref.ref(entry))
        del entry
    assert [entry() for entry in waited if entry() is not None] == []
    assert _GIVEN_UP in [entry.name for entry in rank.in_flight.all()]


def test_a_chained_call_does_not_wait_for_what_was_given_up(rank: _Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may itself wait for that call, on another rank."""
    _give_up(rank, monkeypatch)
    first = _entry("first")
    assert rank.main.run_chained(first, lambda: threading.current_thread().name) == "hvdlite-main-driver"
    assert [rank.drives.get(timeout=PATIENCE_S) for _ in range(2)] == [_GIVEN_UP] * 2  # the second time after the call
    assert _GIVEN_UP in [entry.name for entry in rank.in_flight.all()]
