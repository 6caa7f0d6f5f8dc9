"""Waits while the deputy drives for one that was given up."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pytest

from hvdlite.engine.deputy import Deputy
from hvdlite.engine.inflight import InFlight
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.handle import Handle
from hvdlite.negotiation.messages import Kind, Request
from hvdlite.net.wake import Bell
from hvdlite.tensors.dtypes import DType, Sum

_GIVEN_UP = "given up"


class _Interrupt(BaseException):
    pass


class _Rank:
    """A deputy whose ``drive`` only sleeps, and a ``wake`` upon which all is done but what was given up."""

    def __init__(self) -> None:
        self.in_flight = InFlight(lambda: None)
        self.driving = threading.Event()
        self.deputy = Deputy(self.in_flight, self._drive, self._wake)

    def submit(self, name: str) -> Entry:
        entry = Entry(Request(name, Kind.ALLREDUCE, DType.FLOAT32, (), Sum, 1.0, 1.0, 0, True), None)
        self.in_flight.submit_all([entry], will_wait=True)
        return entry

    def _drive(self, handle: Handle) -> None:
        self.driving.set()
        self.in_flight.wait(handle)

    def _wake(self) -> None:
        self.in_flight.finish([entry for entry in self.in_flight.take_new() if entry.name != _GIVEN_UP])


@pytest.fixture
def rank() -> Iterator[_Rank]:
    made = _Rank()
    yield made
    made.in_flight.finish(made.in_flight.all())
    made.deputy.stop(10)
    made.deputy.close()


class _Waiting(Bell):
    """The bell of a wait, and not the one on which the deputy sleeps."""


def _give_up(rank: _Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(bell: Bell, timeout_s: float | None = None) -> None:
        rank.driving.wait()
        raise _Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(_Waiting, "wait", interrupt)
        rank.deputy._bells = [_Waiting()]
        entry = rank.submit(_GIVEN_UP)
        with pytest.raises(_Interrupt):
            rank.deputy.wait(entry)


def test_waits_behind_one_that_was_given_up_leave_nothing(rank: _Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    _give_up(rank, monkeypatch)
    waited = []
    for number in range(20):
        entry = rank.submit(f"{number}")
        rank.deputy.wait(entry)
        waited.append(weakref.ref(entry))
        del entry
    assert [entry() for entry in waited if entry() is not None] == []
    assert rank.in_flight.find(_GIVEN_UP) is not None
