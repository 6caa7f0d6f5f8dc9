"""Collectives without names from several threads: refused at the call where ranks could not match them."""

from __future__ import annotations

import _thread
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import hvdlite as hvd
from tests.harness import process_ranks
from tests.harness.patience import PATIENCE_S


def _in_thread(function: Callable[[], Any], name: str, kind: type[threading.Thread] = threading.Thread) -> Any:
    """The result of ``function``, or the text of its ValueError, in a new thread."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(function())
        except ValueError as error:
            found.append(str(error))

    thread = kind(target=call, name=name)
    thread.start()
    thread.join()
    return found[0]


def _in_native_thread(function: Callable[[], Any]) -> Any:
    """The result of ``function`` in a thread of which `threading` does not know."""
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    _thread.start_new_thread(lambda: found.put(function()), ())
    return found.get(timeout=PATIENCE_S)


def _total(value: float, name: str | None = None) -> float:
    return float(hvd.allreduce(np.full(3, value, np.float32), name=name, op=hvd.Sum)[0])


def _group_total() -> float:
    return float(hvd.grouped_allreduce([np.ones(3, np.float32)] * 2, op=hvd.Sum)[1][0])


def _message() -> Any:
    tensor = np.ones(2)
    return hvd.recv(tensor, 0) if hvd.rank() else hvd.send(tensor, 1)


_UNNAMED: dict[str, Callable[[], Any]] = {
    "allreduce": lambda: _total(1.0),
    "grouped allreduce": _group_total,
    "allgather": lambda: hvd.allgather_object(1),
    "broadcast": lambda: hvd.broadcast(np.ones(2), 0),
    "alltoall": lambda: hvd.alltoall(np.ones(2)),
    "send or recv": _message,
    "barrier": hvd.barrier,
}


def _second_thread() -> str:
    hvd.init()
    for call in _UNNAMED.values():
        call()
    for kind, call in _UNNAMED.items():
        told = _in_thread(call, "logger")
        assert f"thread 'logger' of rank {hvd.rank()} calls {kind.removeprefix('grouped ')} without a name" in told
        assert "and so did thread 'MainThread'" in told
        assert ("in one thread, or in a process set" if kind == "barrier" else "name='...'") in told
        call()  # nothing was submitted, so the ranks still agree
    assert _in_thread(lambda: _total(2.0, "of the logger"), "logger") == 4.0
    own = [hvd.add_process_set([0]), hvd.add_process_set([1])][hvd.rank()]
    assert _in_thread(lambda: hvd.broadcast(np.ones(1), hvd.rank(), process_set=own)[0], "of a set") == 1.0
    hvd.barrier()  # whoever leaves first ends the sets of the others too
    hvd.shutdown()
    hvd.init()
    assert _in_thread(lambda: _total(1.0), "first of a session") == 2.0
    hvd.shutdown()
    return "ok"


def test_a_second_thread_is_refused_without_names() -> None:
    assert [outcome.result() for outcome in process_ranks(2, _second_thread)] == ["ok", "ok"]


def _threads_that_may() -> str:
    """Threads after the first one has ended, and those that hvdlite cannot tell from a framework's."""
    hvd.init()
    assert [_in_thread(partial(_total, value), f"worker {value}") for value in (1.0, 2.0)] == [2.0, 4.0]
    _total(1.0)
    replica = type("Replica", (threading.Thread,), {"__module__": "tensorflow.python.distribute"})
    assert _in_thread(lambda: _total(3.0), "replica", replica) == 6.0
    assert _in_thread(lambda: _total(3.0), "hvdlite-main-driver") == 6.0
    known = threading.enumerate()
    assert _in_native_thread(lambda: _total(4.0)) == 8.0
    assert threading.enumerate() == known
    assert _in_native_thread(lambda: (threading.current_thread(), _total(5.0))[1]) == 10.0  # as logging does first
    assert "without a name" in _in_thread(lambda: _total(1.0), "logger")
    hvd.barrier()
    hvd.shutdown()
    return "ok"


def test_a_thread_may_follow_another_and_those_of_frameworks_are_exempt() -> None:
    assert [outcome.result() for outcome in process_ranks(2, _threads_that_may)] == ["ok", "ok"]
