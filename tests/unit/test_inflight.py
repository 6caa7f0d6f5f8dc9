"""When submits wake the coordinator, and what is left of a tensor that is done."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hvdlite.core.buffer import address_of
from hvdlite.core.dtypes import DType, Sum
from hvdlite.core.entry import Entry
from hvdlite.core.messages import Kind, Request
from hvdlite.errors import DuplicateName
from hvdlite.runtime.inflight import InFlight

Array = npt.NDArray[Any]


def entry(name: str) -> Entry:
    request = Request(name, Kind.ALLREDUCE, DType.FLOAT32, (0,), Sum, 1.0, 1.0, 0, True)
    return Entry(request, None)


@pytest.fixture
def wakes() -> list[bool]:
    return []


@pytest.fixture
def in_flight(wakes: list[bool]) -> InFlight:
    return InFlight(lambda: wakes.append(True))


def test_one_wake_until_what_is_new_was_taken(in_flight: InFlight, wakes: list[bool]) -> None:
    in_flight.submit(entry("a"))
    in_flight.submit(entry("b"))
    assert len(wakes) == 1
    assert [each.request.name for each in in_flight.take_new()] == ["a", "b"]
    in_flight.submit(entry("c"))
    assert len(wakes) == 2


def test_a_burst_wakes_at_its_end(in_flight: InFlight, wakes: list[bool]) -> None:
    with in_flight.burst(), in_flight.burst():
        in_flight.submit(entry("a"))
        in_flight.take_new()  # by a turn that something else caused
        in_flight.submit(entry("b"))
        assert wakes == []
    assert len(wakes) == 1
    assert [each.request.name for each in in_flight.take_new()] == ["b"]


def test_a_submit_that_fails_in_a_burst_loses_no_wake(in_flight: InFlight, wakes: list[bool]) -> None:
    with in_flight.burst():
        in_flight.submit(entry("a"))
        with pytest.raises(DuplicateName):
            in_flight.submit(entry("a"))
    assert len(wakes) == 1


def test_a_burst_without_anything_new_wakes_nobody(in_flight: InFlight, wakes: list[bool]) -> None:
    with in_flight.burst():
        pass
    assert wakes == []


def test_a_handle_that_is_done_keeps_no_memory(in_flight: InFlight) -> None:
    tensor = np.zeros(4, np.float32)
    like = np.zeros(4, np.float32)
    memories = [weakref.ref(tensor), weakref.ref(like)]

    def allocate(shape: tuple[int, ...], rows: tuple[int, ...], like: Array = like) -> tuple[Array, int]:
        output = np.empty(shape, like.dtype)
        return output, address_of(output)

    kept = Entry(entry("a").request, None, address_of(tensor), owner=tensor, allocate=allocate)
    in_flight.submit(kept)
    in_flight.take_new()
    in_flight.finish([kept])
    del tensor, like, allocate
    assert kept.is_done
    assert [memory() for memory in memories] == [None, None]


@pytest.mark.timeout(300)  # it would wait for itself
def test_what_is_freed_with_a_tensor_may_submit(in_flight: InFlight) -> None:
    class Allocator:
        def __call__(self, shape: tuple[int, ...], rows: tuple[int, ...]) -> tuple[None, int]:
            return None, 0

        def __del__(self) -> None:
            in_flight.submit(entry("last words"))

    owned = entry("a")
    owned.allocate = Allocator()
    in_flight.submit(owned)
    in_flight.finish(in_flight.take_new())
    assert [each.name for each in in_flight.take_new()] == ["last words"]
