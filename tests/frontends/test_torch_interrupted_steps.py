"""A step that a signal handler interrupts while it waits is taken again, and ranks keep the same parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hvdlite.torch as hvd
from hvdlite.errors import HorovodInternalError
from tests.harness import ProcessRanks, pause_at, reached
from tests.harness.alarms import raise_in_a_wait
from tests.harness.forkserver import TORCH


class _Interrupt(BaseException):
    pass


def _results(work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Those of two ranks, of which rank 1 goes on when rank 0 has been interrupted."""
    with ProcessRanks(2, work, *arguments, server=TORCH) as ranks:
        ranks.wait_for("interrupted", 0)
        ranks.release(1)
        return [outcome.result() for outcome in ranks.join()]


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))


def _step_twice(is_late: bool) -> list[list[float]]:
    """Rank 0's first step is interrupted, because rank 1 begins it only then."""
    hvd.init()
    model = _model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Sum
    )
    for step in range(3):
        if step == 0 and hvd.rank() == 1:
            pause_at("late")
        optimizer.zero_grad()
        model(torch.full((1, 2), float(step + hvd.rank()))).sum().backward()
        if step == 0 and hvd.rank() == 0:
            raise_in_a_wait(_Interrupt, 0.3)
            with pytest.raises(_Interrupt):
                optimizer.step()
            reached("interrupted")
            if is_late:  # the result has come when the step is taken again
                hvd.allreduce(torch.ones(1), name="late")
        elif step == 0 and is_late:
            optimizer.step()
            hvd.allreduce(torch.ones(1), name="late")
            continue
        optimizer.step()
    result = [parameter.flatten().tolist() for parameter in model.parameters()]
    hvd.shutdown()
    return result


@pytest.mark.parametrize("is_late", [False, True])
def test_a_step_that_was_interrupted_is_taken_again(is_late: bool) -> None:
    first, second = _results(_step_twice, is_late)
    assert first == second


def _adasum() -> str:
    hvd.init()
    model = _model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Adasum
    )
    if hvd.rank() == 1:
        pause_at("late")
    model(torch.ones(1, 2)).sum().backward()
    told = ""
    if hvd.rank() == 0:
        raise_in_a_wait(_Interrupt, 0.3)
        with pytest.raises(_Interrupt):
            optimizer.step()
        assert all(map(torch.equal, model.parameters(), before))
        reached("interrupted")
        with pytest.raises(HorovodInternalError) as caught:
            optimizer.step()
        told = str(caught.value)
    else:
        optimizer.step()
    hvd.barrier()
    hvd.shutdown()
    return told


def test_a_step_of_adasum_that_was_interrupted_leaves_the_parameters_and_says_what_is_to_be_done() -> None:
    told, _ = _results(_adasum)
    assert "was interrupted while ranks combined it" in told
    assert "broadcast parameters" in told
