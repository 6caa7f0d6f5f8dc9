"""Forked children of ranks: they know the numbers of their parent, run no collectives, and harm nobody."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.session import known_session
from tests.harness import process_ranks


def _described(sets: list[hvd.ProcessSet]) -> list[Any]:
    of_sets = [[each.rank(), each.size(), each.included(), each.ranks] for each in (*sets, hvd.global_process_set)]
    numbers = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
    return [*numbers, hvd.is_homogeneous(), known_session().sets.ranks_by_number(), *of_sets]


def _refusal(call: Callable[[], Any]) -> str:
    with pytest.raises((hvd.HorovodInternalError, ValueError)) as raised:
        call()
    return str(raised.value)


def _in_a_child(function: Callable[[], Any]) -> Callable[[], Any]:
    """Forks a child that calls ``function``; returns what waits for its result."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        with open(writing, "wb") as pipe:
            pickle.dump(function(), pipe)
            pipe.flush()
            os._exit(0)
    os.close(writing)

    def result() -> Any:
        with open(reading, "rb") as pipe:
            found = pickle.load(pipe)
        os.wait()
        return found

    return result


def _of_a_child(sets: list[hvd.ProcessSet]) -> tuple[list[Any], bool, list[str]]:
    calls: list[Callable[[], Any]] = [
        lambda: hvd.allreduce(np.ones(3)),
        lambda: hvd.barrier(process_set=sets[hvd.rank()]),
        lambda: hvd.add_process_set([0]),
        lambda: hvd.start_timeline("timeline.json"),
    ]
    refusals = [_refusal(call) for call in calls]
    hvd.shutdown()
    return _described(sets), hvd.is_initialized(), refusals


def _begins_its_own(sets: list[hvd.ProcessSet], is_over: int) -> list[Any]:
    os.read(is_over, 1)
    hvd.init()
    total = float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
    found = [hvd.rank(), total, hvd.global_process_set.size(), sets[0].size()]
    hvd.shutdown()
    return [*found, hvd.global_process_set.size(), _refusal(hvd.rank)]


def _forks() -> None:
    hvd.init()
    sets = [hvd.add_process_set([member]) for member in range(2)]
    hvd.allreduce(np.ones(3))
    rank, here = hvd.rank(), _described(sets)
    child = _in_a_child(lambda: [_of_a_child(sets), _in_a_child(lambda: _of_a_child(sets))()])
    for described, is_initialized, refusals in child():
        assert (described, is_initialized) == (here, False)
        for refusal in refusals:
            assert f"was forked from rank {rank}, and is no rank itself" in refusal
    is_over, ends = os.pipe()

    def outlive() -> list[Any]:
        os.close(ends)
        return _begins_its_own(sets, is_over)

    outlives = _in_a_child(outlive)
    hvd.allreduce(np.ones(3), process_set=sets[rank])
    hvd.barrier()
    hvd.shutdown()
    outside = "hvdlite has not been initialized again after shutdown(); call hvd.init() first"
    assert _in_a_child(lambda: [_refusal(hvd.rank), _refusal(hvd.barrier)])() == [outside] * 2
    os.close(ends)
    assert outlives() == [rank, 2.0, 2, None, None, outside]


def test_a_forked_child_has_the_numbers_of_its_parent_and_is_no_rank() -> None:
    for outcome in process_ranks(2, _forks):
        outcome.result()


def _wait_after_a_fork(forks_in_thread: bool) -> int:
    """A child waits for what its parent has in flight."""
    hvd.init()
    code: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            try:
                hvd.synchronize(handle)
            except hvd.HorovodInternalError as error:
                os._exit(0 if "was forked from rank 0" in str(error) else 2)
            os._exit(3)
        code.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(3), name="in flight", op=hvd.Sum)
        if forks_in_thread:
            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()
        else:
            fork()
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(np.ones(3), name="in flight", op=hvd.Sum)
    assert hvd.synchronize(handle)[0] == 2.0
    hvd.shutdown()
    return code[0] if code else 0


@pytest.mark.parametrize("forks_in_thread", [False, True])
def test_a_forked_child_does_not_wait_for_what_its_parent_has_in_flight(forks_in_thread: bool) -> None:
    assert [outcome.result() for outcome in process_ranks(2, _wait_after_a_fork, forks_in_thread)] == [0, 0]
