"""Submits that wake the coordinator, and the remains of a tensor that is done."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import numpy.typing as npt
import pytest

from hvdlite.engine.inflight import InFlight
from hvdlite.errors import DuplicateName, HorovodInternalError
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.messages import BARRIER_NAME, Kind, Request
from hvdlite.net.wake import Bell
from hvdlite.ops import GroupHandle, abandon
from hvdlite.tensors.buffer import address_of
from hvdlite.tensors.dtypes import DType, Sum

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


def test_a_stream_of_submits_wakes_nobody_until_nothing_new_was_found(in_flight: InFlight, wakes: list[bool]) -> None:
    with patch("time.monotonic", return_value=1.0) as clock:
        for name in "abc":
            in_flight.submit(entry(name))
            assert not in_flight.is_stream
            in_flight.take_new()
        assert in_flight.is_stream
        in_flight.submit(entry("d"))
        assert len(wakes) == 3
        assert [each.name for each in in_flight.take_new()] == ["d"]
        assert in_flight.is_stream
        assert in_flight.take_new() == []
        assert not in_flight.is_stream
        for number, name in enumerate("efgh", 4):
            clock.return_value += 1.0
            in_flight.submit(entry(name))
            assert len(wakes) == number
            in_flight.take_new()
            assert not in_flight.is_stream


def test_a_burst_is_no_stream_and_wakes_at_its_end(in_flight: InFlight, wakes: list[bool]) -> None:
    with patch("time.monotonic", return_value=1.0):
        for name in "abc":
            in_flight.submit(entry(name))
            in_flight.take_new()
        assert in_flight.is_stream
        with in_flight.burst():
            in_flight.submit(entry("d"))
            in_flight.take_new()
            assert not in_flight.is_stream
            in_flight.submit(entry("e"))
        assert len(wakes) == 4


def test_calls_that_wait_are_no_stream(in_flight: InFlight) -> None:
    for name in "abcde":
        in_flight.submit_all([entry(name)], will_wait=True)
        in_flight.take_new()
        assert not in_flight.is_stream


def test_a_bell_that_an_interrupted_wait_has_left_rings_nothing_else(in_flight: InFlight) -> None:
    first = entry("a")
    in_flight.submit(first)
    assert in_flight.watch(first, Bell())
    in_flight.finish(in_flight.take_new())
    assert first.is_done
    assert not in_flight.waiters


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


def test_the_next_call_of_an_abandoned_name_is_submitted_when_that_is_done(in_flight: InFlight) -> None:
    first, refused, second, third = (entry("a") for _ in range(4))
    in_flight.submit(first)
    with pytest.raises(DuplicateName):
        in_flight.submit(refused)
    abandon(first)
    with ThreadPoolExecutor(1) as other:  # any thread's
        other.submit(in_flight.submit, second).result()
    with pytest.raises(DuplicateName):  # one may wait, unless it is abandoned as well
        in_flight.submit(refused)
    abandon(GroupHandle((second,)))
    in_flight.submit_all((third,))
    for each in (first, second, third):
        assert in_flight.take_new() == [each]
        in_flight.finish((each,))
    assert not in_flight


def test_barriers_of_several_threads_run_one_after_the_other(in_flight: InFlight) -> None:
    barriers = [entry(BARRIER_NAME) for _ in range(3)]
    for each in barriers:
        with ThreadPoolExecutor(1) as other:
            other.submit(in_flight.submit, each).result()
    for each in barriers:
        assert in_flight.take_new() == [each]
        in_flight.finish((each,))
    assert not in_flight


class _Refused(list[Any]):
    """The calls behind others, when the session ends just before ``function`` of the list."""

    def __init__(self, in_flight: InFlight, function: str) -> None:
        super().__init__(in_flight._deferred)
        self._in_flight = in_flight
        self._function = function

    def remove(self, call: Any) -> None:
        if self._function == "remove":
            self._in_flight.end(HorovodInternalError("it ended"))
        super().remove(call)

    def pop(self, *_: Any) -> Any:
        popped = super().pop()
        if self._function == "pop" and self:
            self._function = ""
            self._in_flight.end(HorovodInternalError("it ended"))
        return popped


@pytest.mark.parametrize("function", ["remove", "pop"])
def test_what_is_behind_is_refused_once_when_the_session_ends_in_two_threads(
    in_flight: InFlight, function: str
) -> None:
    interrupted, *behind = (entry("a"), entry("a"), entry("a"))
    for each in (interrupted, *behind):
        in_flight.submit_all([each], will_wait=True)
    assert in_flight.take_new() == [interrupted]
    in_flight._deferred = _Refused(in_flight, function)
    if function == "remove":
        in_flight.finish([interrupted])
        assert in_flight.take_new() == []
    else:
        in_flight.end(HorovodInternalError("it ended, too"))
    assert all(each.is_done and "it ended" in str(each.error) for each in behind)
    assert in_flight.all() in ([], [interrupted])
    assert in_flight.take_new() == []


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_waiter_is_released_once_whenever_its_handle_is_done(when: str, in_flight: InFlight) -> None:
    handle, releases = entry("a"), Mock()
    in_flight.submit(handle)

    class Waiters(dict[Any, Any]):
        def setdefault(self, key: Any, default: Any = None) -> Any:
            found = super().setdefault(key, default)
            if when == "between":  # the two steps of `watch`, another thread finishes it
                in_flight.finish([handle])
            return found

    in_flight.waiters = Waiters()
    if when == "before":
        in_flight.finish([handle])
    assert in_flight.watch(handle, releases) == (when == "after")
    if when == "after":
        in_flight.finish([handle])
    in_flight.finish([])
    releases.release.assert_called_once_with()
    assert in_flight.waiters == {}
