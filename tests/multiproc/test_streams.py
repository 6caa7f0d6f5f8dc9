"""Asynchronous submits that nobody waits for, right after many others: their turn comes soon all the same."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.session import current
from tests.harness import process_ranks
from tests.harness.patience import NO_TIMER, until


def _submit(name: str) -> Any:
    return hvd.allreduce_async(np.ones(1000, np.float32), name=name, op=hvd.Sum)


def _run(in_thread: bool) -> None:
    hvd.init()
    names = ["late", "lone", *(f"quick {number}" for number in range(6))]
    for _ in range(3):
        for name in names:
            hvd.synchronize(_submit(name))
    thread = threading.Thread(target=_stream, args=(names,))
    if in_thread:
        thread.start()
        thread.join()
    else:
        _stream(names)
    hvd.shutdown()


def _stream(names: list[str]) -> None:
    """A driver takes the turns of the stream, and the coordinator's thread sleeps. Then one more comes."""
    for _ in range(5):
        hvd.barrier()
        if hvd.rank() == 0:
            for handle in [_submit(name) for name in names if name != "late"]:
                hvd.synchronize(handle)
            hvd.synchronize(_submit("late"))
            continue
        late = _submit("late")
        with current().everyone.burst():
            for name in names[2:]:
                hvd.synchronize(_submit(name))
        lone = _submit("lone")
        until(lambda lone=lone: hvd.poll(lone))  # type: ignore[misc]
        hvd.synchronize(lone)
        hvd.synchronize(late)


@pytest.mark.parametrize("in_thread", [False, True], ids=["main thread", "another"])
def test_a_submit_behind_a_stream_has_its_turn(in_thread: bool) -> None:
    for outcome in process_ranks(2, _run, in_thread, environ=NO_TIMER):
        outcome.result()


def _many_threads() -> None:
    hvd.init()
    names = [[f"{thread} {number}" for number in range(20)] for thread in range(3)]

    def submit(own: list[str]) -> None:
        for _ in range(20):
            handles = [_submit(name) for name in own]
            until(lambda handles=handles: all(map(hvd.poll, handles)))  # type: ignore[misc]
            for handle in handles:
                hvd.synchronize(handle)

    threads = [threading.Thread(target=submit, args=(own,)) for own in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hvd.shutdown()


@pytest.mark.parametrize("count", [1, 2])
def test_streams_of_several_threads_end(count: int) -> None:
    for outcome in process_ranks(count, _many_threads, environ=NO_TIMER):
        outcome.result()
