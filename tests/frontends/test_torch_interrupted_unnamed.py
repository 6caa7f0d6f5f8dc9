"""A call without a name is counted if it was submitted, wherever a signal handler interrupts it: torch tensors."""

from __future__ import annotations

import pytest
import torch

import hvdlite.torch as hvd
from hvdlite.torch.collectives.operators import HAS_OPERATORS
from tests.frontends import torch_operators
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH
from tests.harness.patience import NO_TIMER
from tests.harness.uncounted import Call, calls_of, first, interrupt_everywhere


def _rows(value: float) -> torch.Tensor:
    return torch.full((2 * hvd.size(), 2), value)


def _in_graph(value: float) -> torch.Tensor:
    return _rows(value).requires_grad_()


def _sparse(value: float) -> float:
    tensor = torch.sparse_coo_tensor([[0]], [value], (3,))
    return float(hvd.sparse_allreduce_async(tensor, None, hvd.Sum)().to_dense()[0])


def _operator(value: float) -> float:
    return first(torch_operators.allreduce(_rows(value), None, hvd.Sum))


_CALLS: dict[str, Call] = {
    **calls_of(hvd, _rows),
    "allreduce of a graph": lambda value: first(hvd.allreduce(_in_graph(value), op=hvd.Sum)),
    "grouped of a graph": lambda value: first(hvd.grouped_allreduce([_in_graph(value)] * 2, op=hvd.Sum)[1]),
    "sparse": _sparse,
    **({"operator": _operator} if HAS_OPERATORS else {}),
}


def _work(step: int) -> dict[str, int]:
    hvd.init()
    places = interrupt_everywhere(_CALLS, step)
    hvd.shutdown()
    return places


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.faults)])
def test_calls_without_names_are_interrupted_at_every_bytecode(step: int) -> None:
    for what, places in process_ranks(2, _work, step, environ=NO_TIMER, server=TORCH)[0].result().items():
        assert places > 200, what
