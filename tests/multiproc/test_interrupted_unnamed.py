"""A call without a name is counted if it was submitted, wherever a signal handler interrupts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import process_ranks
from tests.harness.patience import NO_TIMER
from tests.harness.uncounted import Call, interrupt_everywhere


def _rows(value: float) -> Any:
    return np.full((2 * hvd.size(), 2), value, np.float32)


def _first(result: Any) -> float:
    return float(np.ravel(result)[0])


def _on(rank: int, result: Any) -> float | None:
    return _first(result) if hvd.rank() == rank else None


def _message(receiver: int) -> Callable[[float], float | None]:
    """Between ranks 0 and 1."""

    def call(value: float) -> float | None:
        if hvd.rank() == receiver:
            received = hvd.recv(_rows(0), 1 - receiver)
            return _first(received) if receiver == 1 else None
        if hvd.rank() == 1 - receiver:
            hvd.send(_rows(value), receiver)
        return None

    return call


def _asynchronous(value: float) -> float:
    """Its handle is lost in an interrupt."""
    return _first(hvd.synchronize(hvd.allreduce_async(_rows(value), op=hvd.Sum)))


def _barrier(_: float) -> None:
    hvd.barrier()


_CALLS: dict[str, Call] = {
    "allreduce": lambda value: _first(hvd.allreduce(_rows(value), op=hvd.Sum)),
    "allreduce_": lambda value: _first(hvd.allreduce_(_rows(value), op=hvd.Sum)),
    "a number": lambda value: hvd.allreduce(value, op=hvd.Sum),
    "asynchronous": _asynchronous,
    "grouped_allreduce": lambda value: _first(hvd.grouped_allreduce([_rows(0), _rows(value)], op=hvd.Sum)[1]),
    "grouped_reducescatter": lambda value: _first(hvd.grouped_reducescatter([_rows(value)] * 2, op=hvd.Sum)[1]),
    "grouped_allgather": lambda value: _first(hvd.grouped_allgather([_rows(value)] * 2)[1]),
    "allgather": lambda value: _first(hvd.allgather(_rows(value))),
    "broadcast": lambda value: _first(hvd.broadcast(_rows(value), 0)),
    "alltoall": lambda value: _first(hvd.alltoall(_rows(value))),
    "reducescatter": lambda value: _first(hvd.reducescatter(_rows(value), op=hvd.Sum)),
    "reduce": lambda value: _on(1, hvd.reduce(_rows(value), 1, op=hvd.Sum)),
    "gather": lambda value: _on(1, hvd.gather(_rows(value), 1)),
    "scatter": lambda value: _first(hvd.scatter(_rows(value), 0)),
    "send": _message(receiver=1),
    "recv": _message(receiver=0),
    "barrier": _barrier,
    "broadcast_object": lambda value: hvd.broadcast_object({"value": value})["value"],
    "allgather_object": lambda value: hvd.allgather_object({"value": value})[0]["value"],
}


def _work(step: int) -> dict[str, int]:
    hvd.init()
    places = interrupt_everywhere(_CALLS, step)
    hvd.shutdown()
    return places


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.faults)])
@pytest.mark.parametrize("size", [2, 3])
def test_calls_without_names_are_interrupted_at_every_bytecode(size: int, step: int) -> None:
    for what, places in process_ranks(size, _work, step, environ=NO_TIMER)[0].result().items():
        assert places > 200, what
