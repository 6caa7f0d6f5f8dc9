"""A signal handler raises in a call of several collectives: its caller hears of it, and other ranks get all parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import hvdlite.torch as hvd
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH
from tests.harness.interrupts import interrupt_everywhere


def _optimizer_state(value: float) -> float:
    parameter = torch.nn.Parameter(torch.full((3,), value))
    optimizer = torch.optim.Adam([parameter], lr=1.0)
    if hvd.rank() == 0:
        parameter.grad = torch.full((3,), value)
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return round(float(optimizer.state_dict()["state"][0]["exp_avg"][0]) * 10, 3)  # a tenth of the gradient


def _parameters(value: float) -> float:
    tensors = {"a": torch.full((3,), value), "b": torch.full((2, 2), value), "c": torch.full((4, 2), value).t()}
    hvd.broadcast_parameters(tensors, root_rank=0)
    assert all(bool((tensor == tensors["a"][0]).all()) for tensor in tensors.values())
    return float(tensors["a"][0])


# Each gives what rank 0, which is interrupted, gives.
_CALLS: dict[str, Callable[[float], float]] = {
    "broadcast_object": lambda value: hvd.broadcast_object({"value": value}, name="object")["value"],
    "allgather_object": lambda value: hvd.allgather_object({"value": value}, name="objects")[0]["value"],
    "broadcast_parameters": _parameters,
    "broadcast_optimizer_state": _optimizer_state,
}


def _interrupted_everywhere(what: str, step: int) -> int:
    hvd.init()
    number = interrupt_everywhere(_CALLS[what], step)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum)[0] == hvd.size()
    hvd.shutdown()
    return number


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.faults)])
@pytest.mark.parametrize("what", _CALLS)
def test_a_call_of_several_parts_is_interrupted_at_every_bytecode(what: str, step: int) -> None:
    assert process_ranks(2, _interrupted_everywhere, what, step, server=TORCH)[0].result() > 300
