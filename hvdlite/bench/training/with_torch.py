"""A real training step: alone on every rank, with hvdlite's optimizer, and with torch's DDP over Gloo.

*reduction* reduces all gradients while nobody computes. *exposed* is how long a step waits for them after the last rank
has ended backward: the shortest wait of any rank, since longer ones contain the lateness of others. The difference of
the two is hidden behind backward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hvdlite.torch as hvd
from hvdlite import Min, allreduce
from hvdlite.bench.measuring.report import Column, Group, Row, Study, make_row
from hvdlite.bench.measuring.timing import Candidate, Clock, Times, measure
from hvdlite.bench.training.figures import BATCH, TOKENS, columns, has_equal_weights
from hvdlite.bench.training.torch_model import make_batch, make_model

_LEARNING_RATE = 0.01


def train(iterations: int, warmup: int) -> Study:
    """The study of the three steps. A process group of Gloo must be open."""
    return Study(
        f"training step, batch {BATCH}×{TOKENS} tokens on each rank", COLUMNS, _measure_steps(iterations, warmup)
    )


def _measure_steps(iterations: int, warmup: int) -> Iterator[Group]:
    model = make_model()
    step, reduction = _hvdlite(deepcopy(model))
    candidates = [_bare(deepcopy(model)), step, reduction, _gloo(deepcopy(model))]
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    times = {**measure(candidates, iterations, warmup), "exposed": allreduce(np.array(step.exposed), op=Min)}
    yield {label: make_row(label, hvd.size(), "train", "float32", nbytes, taken) for label, taken in times.items()}


def _bare(model: nn.Module) -> Candidate:
    optimizer = _sgd(model)
    step = _step(model, optimizer, optimizer.step)

    def is_right() -> bool:
        step()
        return True  # the ranks differ, as they should

    return Candidate("bare", step, is_right)


@dataclass(frozen=True)
class WaitingStep(Candidate):
    """A step that appends to ``waits`` its seconds of waiting after backward; ``exposed`` are those of timed steps."""

    waits: list[float]
    exposed: list[float] = field(default_factory=list)

    def block(self, length: int, warmup: int, clock: Clock) -> Times:
        times = super().block(length, warmup, clock)
        self.exposed.extend(self.waits[-length:])
        return times


def _hvdlite(model: nn.Module) -> tuple[WaitingStep, Candidate]:
    """The step, and the reduction alone."""
    waits: list[float] = []
    optimizer = hvd.DistributedOptimizer(_sgd(model), model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def finish() -> None:
        begin = time.perf_counter()
        optimizer.synchronize()
        waits.append(time.perf_counter() - begin)
        with optimizer.skip_synchronize():
            optimizer.step()

    def reduce() -> bool:
        optimizer.synchronize()
        return True

    step = _step(model, optimizer, finish)
    is_right = has_equal_weights(step, lambda: _sum(model))
    return WaitingStep("hvdlite", step, is_right, waits), Candidate("reduction", reduce, reduce)


def _gloo(model: nn.Module) -> Candidate:
    replica = DistributedDataParallel(model)
    optimizer = _sgd(replica)
    step = _step(replica, optimizer, optimizer.step)
    return Candidate("gloo", step, has_equal_weights(step, lambda: _sum(replica)))


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), _LEARNING_RATE)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, finish: Callable[[], Any]) -> Callable[[], None]:
    tokens, following = make_batch(hvd.rank())

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
        torch.autograd.backward(loss)
        finish()

    return step


def _sum(model: nn.Module) -> float:
    return sum(parameter.detach().double().sum().item() for parameter in model.parameters())


def hidden_share(group: Group) -> float:
    """The share of the reduction that is over when the last rank ends backward, by the medians; 0 if none."""
    return max(0.0, 1 - group["exposed"].median_us / group["reduction"].median_us)


def _hidden(row: Row, group: Group) -> str:
    return f"{hidden_share(group):.0%}" if row.system == "hvdlite" else ""


COLUMNS = [*columns("gloo"), Column("hidden", 8, _hidden)]
