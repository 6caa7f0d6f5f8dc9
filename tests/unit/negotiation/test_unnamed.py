"""Names of calls that have none from the user."""

from __future__ import annotations

import itertools

import pytest

from hvdlite.engine.inflight import InFlight
from hvdlite.errors import DuplicateName
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import Kind, Request
from hvdlite.negotiation.unnamed import Unnamed
from hvdlite.tensors.dtypes import DType, Sum


def _entry(name: str) -> Entry:
    return Entry(Request(name, Kind.ALLREDUCE, DType.UINT8, (1,), Sum, 1.0, 1.0, 0, cacheable=False), None)


def test_tensors_of_a_call_are_counted_together() -> None:
    numbers = itertools.count()
    first, second = (Unnamed(lambda: f"call {next(numbers)}") for _ in range(2))
    assert len({first, first + "[0]", first + "[1]", second, second + "[0]"}) == 5
    assert (second + "[0]" + ".part").counted() == "call 0[0].part"
    assert [(first + "[1]").counted(), second.counted(), first.counted()] == ["call 1[1]", "call 0", "call 1"]


def test_an_entry_has_its_name_once_it_is_counted() -> None:
    in_flight = InFlight(lambda: None)
    entry = _entry(Unnamed(lambda: "call 0"))
    in_flight.submit(entry)
    assert in_flight.take_new() == [entry]
    assert in_flight.count(entry)
    assert entry.name == entry.request.name == "call 0"
    assert in_flight.all() == [entry]
    in_flight.finish([entry])
    assert not in_flight


def test_a_name_that_the_user_has_in_flight_is_refused() -> None:
    in_flight = InFlight(lambda: None)
    given, counted = _entry("call 0"), _entry(Unnamed(lambda: "call 0"))
    in_flight.submit_all([given, counted])
    in_flight.take_new()
    assert not in_flight.count(counted)
    with pytest.raises(DuplicateName, match="'call 0' is already in flight"):
        raise counted.error or AssertionError
    assert in_flight.all() == [given]
