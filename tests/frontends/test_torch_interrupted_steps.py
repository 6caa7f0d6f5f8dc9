"""A step that a signal handler interrupts while it waits is taken again, and ranks keep the same parameters."""

from __future__ import annotations

import os
import signal

import pytest
import torch

import hvdlite.torch as hvd
from hvdlite.errors import HorovodInternalError
from tests.harness import process_ranks


class _Interrupt(BaseException):
    pass


def _raise(*_: object) -> None:
    raise _Interrupt


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))


def _step_twice(is_late: bool, folder: str) -> list[list[float]]:
    """Rank 0's first step is interrupted, because rank 1 begins it only then."""
    hvd.init()
    signal.signal(signal.SIGALRM, _raise)
    model = _model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Sum
    )
    was_interrupted = os.path.join(folder, "interrupted")
    for step in range(3):
        if step == 0 and hvd.rank() == 1:
            while not os.path.exists(was_interrupted):
                os.sched_yield()
        optimizer.zero_grad()
        model(torch.full((1, 2), float(step + hvd.rank()))).sum().backward()
        if step == 0 and hvd.rank() == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(_Interrupt):
                optimizer.step()
            open(was_interrupted, "x").close()
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
def test_a_step_that_was_interrupted_is_taken_again(is_late: bool, tmp_path: os.PathLike[str]) -> None:
    first, second = (outcome.result() for outcome in process_ranks(2, _step_twice, is_late, os.fspath(tmp_path)))
    assert first == second


def _adasum(folder: str) -> str:
    hvd.init()
    signal.signal(signal.SIGALRM, _raise)
    model, was_interrupted = _model(), os.path.join(folder, "interrupted")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Adasum
    )
    if hvd.rank() == 1:
        while not os.path.exists(was_interrupted):
            os.sched_yield()
    model(torch.ones(1, 2)).sum().backward()
    told = ""
    if hvd.rank() == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(_Interrupt):
            optimizer.step()
        assert all(map(torch.equal, model.parameters(), before))
        open(was_interrupted, "x").close()
        with pytest.raises(HorovodInternalError) as caught:
            optimizer.step()
        told = str(caught.value)
    else:
        optimizer.step()
    hvd.barrier()
    hvd.shutdown()
    return told


def test_a_step_of_adasum_that_was_interrupted_leaves_the_parameters_and_says_what_is_to_be_done(
    tmp_path: os.PathLike[str],
) -> None:
    told = process_ranks(2, _adasum, os.fspath(tmp_path))[0].result()
    assert "was interrupted while ranks combined it" in told
    assert "broadcast parameters" in told
