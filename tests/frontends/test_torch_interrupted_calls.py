"""A blocking call with a gradient, or by an operator, that a signal handler interrupts can be made again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
import torch

import hvdlite.torch as hvd
from hvdlite.session import current
from hvdlite.torch.collectives.operators import HAS_OPERATORS
from tests.frontends import torch_operators
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH


class _Interrupt(BaseException):
    pass


def _raise(*_: object) -> None:
    raise _Interrupt


def _input() -> torch.Tensor:
    return torch.full((2,), float(1 + hvd.rank()), requires_grad=True)


class _Backward:
    """The way back of as many sums as there will be calls."""

    def __init__(self) -> None:
        self._inputs = [_input() for _ in range(2)]
        self._sums = [hvd.allreduce(each, name="x", op=hvd.Sum).sum() for each in self._inputs]

    def __call__(self) -> torch.Tensor:
        given = self._inputs.pop()
        self._sums.pop().backward()
        assert given.grad is not None
        return given.grad


_CALLS: dict[str, Callable[[], torch.Tensor]] = {
    "allreduce": lambda: hvd.allreduce(_input(), name="x", op=hvd.Sum),
    "grouped_allreduce": lambda: hvd.grouped_allreduce([_input(), _input()], name="x", op=hvd.Sum)[1],
    "allgather": lambda: hvd.allgather(_input(), name="x"),
    "broadcast": lambda: hvd.broadcast(_input(), 1, name="x"),
    "alltoall": lambda: hvd.alltoall(_input(), name="x"),
    "reducescatter": lambda: hvd.reducescatter(_input(), name="x", op=hvd.Sum),
    "operator": lambda: torch_operators.allreduce(_input().detach(), "x", hvd.Sum),
}


def _called_again(folder: str) -> dict[str, list[float]]:
    """Rank 0 is interrupted in each call, which rank 1 makes only then, and makes it again."""
    hvd.init()
    signal.signal(signal.SIGUSR1, _raise)
    group = current().everyone
    results = {}

    def interrupt() -> None:
        while not group.statistics().in_flight:
            os.sched_yield()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    for what, call in {**_CALLS, "backward": _Backward()}.items():
        if what == "operator" and not HAS_OPERATORS:
            continue
        was_interrupted = os.path.join(folder, what)
        if hvd.rank() == 0:
            thread = threading.Thread(target=interrupt)
            thread.start()  # it waits for something in flight
            with pytest.raises(_Interrupt):
                call()
            thread.join()
            open(was_interrupted, "x").close()
        else:
            while not os.path.exists(was_interrupted):
                os.sched_yield()
            call()
        results[what] = call().tolist()
    hvd.shutdown()
    return results


def test_what_was_interrupted_is_called_again_under_its_name(tmp_path: str) -> None:
    first, second = (outcome.result() for outcome in process_ranks(2, _called_again, str(tmp_path), server=TORCH))
    assert first == {
        "allreduce": [3, 3],
        "grouped_allreduce": [3, 3],
        "allgather": [1, 1, 2, 2],
        "broadcast": [2, 2],
        "alltoall": [1, 2],
        "reducescatter": [3],
        **({"operator": [3, 3]} if HAS_OPERATORS else {}),
        "backward": [2, 2],
    }
    assert second == first
