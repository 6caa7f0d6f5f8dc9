"""A call without a name is counted if it was submitted, wherever a signal handler interrupts it: torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hvdlite.torch as hvd
from hvdlite.torch.collectives import compiled
from hvdlite.torch.collectives.operators import HAS_OPERATORS
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH
from tests.harness.patience import NO_TIMER
from tests.harness.uncounted import Call, interrupt_everywhere


def _rows(value: float) -> torch.Tensor:
    return torch.full((2 * hvd.size(), 2), value)


def _in_graph(value: float) -> torch.Tensor:
    return _rows(value).requires_grad_()


def _first(result: Any) -> float:
    return float(result.flatten()[0])


def _on(rank: int, result: torch.Tensor) -> float | None:
    return _first(result) if hvd.rank() == rank else None


def _message(receiver: int) -> Callable[[float], float | None]:
    """Between ranks 0 and 1."""

    def call(value: float) -> float | None:
        if hvd.rank() == receiver:
            received = hvd.recv(_rows(0.0), 1 - receiver)
            return _first(received) if receiver == 1 else None
        if hvd.rank() == 1 - receiver:
            hvd.send(_rows(value), receiver)
        return None

    return call


def _sparse(value: float) -> float:
    tensor = torch.sparse_coo_tensor([[0]], [value], (3,))
    return float(hvd.sparse_allreduce_async(tensor, None, hvd.Sum)().to_dense()[0])


def _asynchronous(value: float) -> float:
    return _first(hvd.synchronize(hvd.allreduce_async_(_rows(value), op=hvd.Sum)))


def _operator(value: float) -> float:
    return _first(compiled.allreduce(_rows(value), op=hvd.Sum))


_CALLS: dict[str, Call] = {
    "allreduce": lambda value: _first(hvd.allreduce(_rows(value), op=hvd.Sum)),
    "allreduce of a graph": lambda value: _first(hvd.allreduce(_in_graph(value), op=hvd.Sum)),
    "allreduce_": lambda value: _first(hvd.allreduce_(_rows(value), op=hvd.Sum)),
    "a number": lambda value: hvd.allreduce(value, op=hvd.Sum),
    "asynchronous": _asynchronous,
    "sparse": _sparse,
    "grouped_allreduce": lambda value: _first(hvd.grouped_allreduce([_rows(0.0), _rows(value)], op=hvd.Sum)[1]),
    "grouped of a graph": lambda value: _first(hvd.grouped_allreduce([_in_graph(value)] * 2, op=hvd.Sum)[1]),
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
    "broadcast_object": lambda value: hvd.broadcast_object({"value": value})["value"],
    "allgather_object": lambda value: hvd.allgather_object({"value": value})[0]["value"],
    **({"operator": _operator} if HAS_OPERATORS else {}),
}


def _work(step: int) -> dict[str, int]:
    hvd.init()
    places = interrupt_everywhere(_CALLS, step)
    hvd.shutdown()
    return places


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.faults)])
def test_calls_without_names_are_interrupted_at_every_bytecode(step: int) -> None:
    for what, places in process_ranks(2, _work, step, environ=NO_TIMER, server=TORCH)[0].result().items():
        assert places > 200, what
