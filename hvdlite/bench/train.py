"""The step of a real training: alone on every rank, with hvdlite's optimizer, and with torch's DDP over Gloo.

What a step takes longer than the bare one, in which all ranks compute at once but never communicate, is what data
parallelism costs. After every block's first step the ranks must have the same weights.

How much of hvdlite's communication is hidden behind backward is what is left of the time of *reduction*, that of all
gradients while nobody computes, after *exposed* is taken off: what the step waits for them when backward has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hvdlite.torch as hvd
from hvdlite import Max, allgather, allreduce
from hvdlite.bench.model import BATCH, TOKENS, make_batch, make_model
from hvdlite.bench.report import Column, Group, Row, Study, make_row
from hvdlite.bench.timing import Candidate, measure

_LEARNING_RATE = 0.01


def train(iterations: int, warmup: int) -> Study:
    """The study of the three steps. A process group of Gloo must be open."""
    return Study(
        f"training step, batch {BATCH}×{TOKENS} tokens on each rank", COLUMNS, _measure_steps(iterations, warmup)
    )


def _measure_steps(iterations: int, warmup: int) -> Iterator[Group]:
    model = make_model()
    exposed: list[float] = []
    candidates = [_bare(deepcopy(model)), *_hvdlite(deepcopy(model), exposed), _gloo(deepcopy(model))]
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    times = {**measure(candidates, iterations, warmup), "exposed": allreduce(np.array(exposed), op=Max)}
    yield {label: make_row(label, hvd.size(), "train", "float32", nbytes, taken) for label, taken in times.items()}


def _bare(model: nn.Module) -> Candidate:
    optimizer = _sgd(model)
    step = _step(model, optimizer, optimizer.step)

    def is_right() -> bool:
        step()
        return True  # the ranks differ, as they should

    return Candidate("bare", step, is_right)


def _hvdlite(model: nn.Module, exposed: list[float]) -> list[Candidate]:
    """The step, which appends to ``exposed`` how long it waits after backward, and the reduction alone."""
    optimizer = hvd.DistributedOptimizer(_sgd(model), model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def finish() -> None:
        begin = time.perf_counter()
        optimizer.synchronize()
        exposed.append(time.perf_counter() - begin)
        with optimizer.skip_synchronize():
            optimizer.step()

    def reduce() -> bool:
        optimizer.synchronize()
        return True

    return [
        _candidate("hvdlite", model, _step(model, optimizer, finish)),
        Candidate("reduction", reduce, is_right=reduce),
    ]


def _gloo(model: nn.Module) -> Candidate:
    replica = DistributedDataParallel(model)
    optimizer = _sgd(replica)
    return _candidate("gloo", replica, _step(replica, optimizer, optimizer.step))


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


def _candidate(label: str, model: nn.Module, step: Callable[[], None]) -> Candidate:
    def is_right() -> bool:
        step()
        weights = sum(parameter.detach().double().sum().item() for parameter in model.parameters())
        return bool(np.ptp(allgather(np.array([weights]))) == 0)

    return Candidate(label, step, is_right)


def overhead_us(row: Row, group: Group) -> float:
    """What the step of ``row`` takes longer than the bare one, by their medians."""
    return row.median_us - group["bare"].median_us


def _overhead(row: Row, group: Group) -> str:
    return f"{overhead_us(row, group) / 1e3:.1f}" if row.system in ("hvdlite", "gloo") else ""


def _overhead_ratio(row: Row, group: Group) -> str:
    others = overhead_us(group["gloo"], group)
    if row.system != "hvdlite" or others <= 0:  # noise can make the bare step the slower one
        return ""
    return f"{overhead_us(row, group) / others:.3f}"


def hidden_share(group: Group) -> float:
    """The part of the time of all reductions that is over when backward ends, by the medians; 0 if it was none."""
    return max(0.0, 1 - group["exposed"].median_us / group["reduction"].median_us)


def _hidden(row: Row, group: Group) -> str:
    return f"{hidden_share(group):.0%}" if row.system == "hvdlite" else ""


COLUMNS = [
    Column("system", 10, lambda row, group: row.system),
    Column("median ms", 11, lambda row, group: f"{row.median_us / 1e3:.1f}"),
    Column("min ms", 11, lambda row, group: f"{row.min_us / 1e3:.1f}"),
    Column("overhead ms", 13, _overhead),
    Column("overhead/gloo", 15, _overhead_ratio),
    Column("hidden", 8, _hidden),
]
