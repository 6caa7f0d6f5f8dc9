"""Collectives that a device has not finished: other work that goes on meanwhile, and how they end.

The test holds the device, and so decides when it does something.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.session import current
from tests.harness import ProcessRanks, process_ranks, reached
from tests.harness.alarms import raise_in_a_wait
from tests.harness.patience import NEVER_SILENT, PATIENCE_S, STALLED, until
from tests.multiproc.on_device import begin, has_no_threads, start, wait_until_given


def _go_on() -> None:
    """Collectives of the host, and further ones of the device, while the device has not begun with the first."""
    plane = begin()
    plane.hold()
    started = [start("first")]
    wait_until_given(plane, 1)
    for step in range(20):
        np.testing.assert_array_equal(hvd.allreduce(np.ones(3), name="host", op=hvd.Sum), hvd.size())
        started.append(start(f"later {step}"))
        wait_until_given(plane, len(started))
    assert not any(hvd.poll(handle) for handle in started)
    with pytest.raises(hvd.DuplicateName):
        start("first")

    def wait_in_another_thread() -> None:
        hvd.allreduce(np.ones(3), name="of the other thread")
        plane.release()

    other = threading.Thread(target=wait_in_another_thread)
    other.start()
    last = hvd.synchronize(started[-1])  # another thread drives for both
    assert all(hvd.poll(handle) for handle in started[:-1])  # the device keeps their order
    other.join()
    for result in (last, *map(hvd.synchronize, started[:-1])):
        np.testing.assert_array_equal(result.on_device(), hvd.size())
    hvd.shutdown()
    until(has_no_threads)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_go_on_while_the_device_works(size: int) -> None:
    for outcome in process_ranks(size, _go_on, environ=STALLED):
        outcome.result()


def _wait_for_the_device(holding: list[int], waits_in_thread: bool) -> None:
    plane = begin()
    if hvd.rank() in holding:
        plane.hold()
    handles = [start("first", 1 << 16)]
    wait_until_given(plane, 1)
    handles.append(start("second"))
    wait_until_given(plane, 2)
    hvd.barrier()
    reached("outstanding")
    if not waits_in_thread:
        hvd.synchronize(handles[0])
    errors: list[hvd.HorovodInternalError] = []

    def wait() -> None:
        try:
            hvd.synchronize(handles[1])
        except hvd.HorovodInternalError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    raise errors[0]


@pytest.mark.parametrize("waits_in_thread", [False, True], ids=["main thread", "other thread"])
@pytest.mark.parametrize("holding", [[0, 1, 2], [1]], ids=["before it begins", "while it waits for a peer"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_while_devices_work_is_lost(
    victim: int, holding: list[int], waits_in_thread: bool
) -> None:
    with ProcessRanks(3, _wait_for_the_device, holding, waits_in_thread, environ=NEVER_SILENT) as ranks:
        ranks.wait_for("outstanding")
        ranks.kill(victim)
        outcomes = ranks.join()
    for rank in {0, 1, 2} - {victim}:
        outcome = outcomes[rank]
        assert (outcome.error, outcome.details.get("rank")) == ("PeerLost", victim), outcome.output


def _stall() -> None:
    plane = begin()
    plane.hold()
    handle = start("outstanding")
    wait_until_given(plane, 1)
    if hvd.rank() == 0:
        hvd.allreduce_async(np.ones(3), name="missing")
    hvd.synchronize(handle)


def test_a_stall_ends_what_the_device_was_given() -> None:
    for outcome in process_ranks(2, _stall, environ={"HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "4"}):
        assert outcome.error == "Stalled"
        assert "rank 1 is missing missing" in outcome.message


def _shut_down(may_end: bool) -> str:
    """Leaves while the device has something; if it ``may_end``, after all ranks have heard that one leaves."""
    plane = begin()
    plane.hold()
    handle = start("outstanding")
    wait_until_given(plane, 1)
    group = current().everyone
    hvd.barrier()

    def release() -> None:
        until(lambda: group.ended is not None)
        plane.release()

    thread = threading.Thread(target=release if may_end else int)
    thread.start()
    hvd.shutdown()
    thread.join()
    until(has_no_threads)
    try:
        np.testing.assert_array_equal(hvd.synchronize(handle).on_device(), 2)
    except hvd.HorovodInternalError as error:
        return type(error).__name__
    return "done"


def test_a_shutdown_waits_for_the_device_and_not_for_ever() -> None:
    patient = {"HVDLITE_SHUTDOWN_TIMEOUT": str(PATIENCE_S)}
    assert [each.result() for each in process_ranks(2, _shut_down, True, environ=patient)] == ["done"] * 2
    hasty = {"HVDLITE_SHUTDOWN_TIMEOUT": "0.5"}
    assert [each.result() for each in process_ranks(2, _shut_down, False, environ=hasty)] == ["ShutDown"] * 2


class _Interrupt(Exception):
    pass


def _interrupted() -> None:
    plane = begin()
    plane.hold()
    handle = start("outstanding")
    wait_until_given(plane, 1)
    raise_in_a_wait(_Interrupt, 0.05)
    with pytest.raises(_Interrupt):
        hvd.synchronize(handle)
    np.testing.assert_array_equal(hvd.allreduce(np.ones(3), name="host"), 1)
    plane.release()
    np.testing.assert_array_equal(hvd.synchronize(handle).on_device(), hvd.size())
    hvd.shutdown()


def test_an_interrupted_wait_for_the_device_can_be_taken_up_again() -> None:
    for outcome in process_ranks(2, _interrupted, environ=STALLED):
        outcome.result()


def _exit_with_an_error() -> None:
    plane = begin()
    plane.hold()
    start("outstanding")
    wait_until_given(plane, 1)
    if hvd.rank() == 0:
        raise RuntimeError("a bug of the script")
    hvd.allreduce(np.ones(3), name="x")


def test_a_rank_that_exits_while_its_device_works_is_named() -> None:
    outcomes = process_ranks(2, _exit_with_an_error, environ=NEVER_SILENT)
    assert outcomes[0].error == "RuntimeError"
    assert (outcomes[1].error, outcomes[1].details.get("rank")) == ("PeerLost", 0), outcomes[1].output
