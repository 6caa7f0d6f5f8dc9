"""A real training step: alone on every rank, with hvdlite's optimizer, and with torch's DDP over Gloo or NCCL.

On CPUs *reduction* reduces all gradients while nobody computes. *exposed* is how long a step waits for them after the
last rank has ended backward: the shortest wait of any rank, since longer ones contain the lateness of others. The
difference of the two is hidden behind backward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hvdlite.torch as hvd
from hvdlite import Min, allreduce
from hvdlite.bench.measuring.report import Column, Group, Row, Study, make_row
from hvdlite.bench.measuring.systems import candidate_for
from hvdlite.bench.measuring.timing import Candidate, Clock, Measured, Times, measure
from hvdlite.bench.training.figures import columns, has_equal_weights
from hvdlite.bench.training.torch_models import ON_CPUS, ON_GPUS, Workload

_LEARNING_RATE = 0.001


def train(iterations: int, warmup: int) -> Study:
    """The study of the steps on CPUs. A process group of Gloo must be open."""
    return Study(f"training step, {ON_CPUS.describes}", COLUMNS, _measure_on_cpus(iterations, warmup))


def train_on_gpus(model: str, precision: str, iterations: int, warmup: int) -> Study:
    """The study of the steps of a model of `ON_GPUS`, with DDP's if a process group of NCCL is open."""
    headline = f"training step on GPUs, {ON_GPUS[model].describes} on each rank, {precision}"
    return Study(headline, COLUMNS_ON_GPUS, _measure_on_gpus(model, precision, iterations, warmup))


def _measure_on_cpus(iterations: int, warmup: int) -> Iterator[Group]:
    make = Steps(ON_CPUS, "cpu")
    step, reduction = make.observed()
    times = measure([make.bare(), step, reduction, make.ddp("gloo")], iterations, warmup)
    yield make.rows("train", {**times, "exposed": allreduce(np.array(step.exposed), op=Min)})


def _measure_on_gpus(model: str, precision: str, iterations: int, warmup: int) -> Iterator[Group]:
    make = Steps(ON_GPUS[model], "cuda", precision)
    candidates = [make.bare(), make.hvdlite(), *([make.ddp("nccl")] if dist.is_initialized() else [])]
    yield make.rows(f"train {model}", measure(candidates, iterations, warmup))


@dataclass(frozen=True)
class WaitingStep(Candidate):
    """A step that appends its seconds of waiting after backward to ``waits``; ``exposed`` has those of timed steps."""

    waits: list[float]
    exposed: list[float] = field(default_factory=list)

    def block(self, length: int, warmup: int, clock: Clock) -> Times:
        times = super().block(length, warmup, clock)
        self.exposed.extend(self.waits[-length:])
        return times


class Steps:
    """Makes the candidates: steps of ``workload`` on ``device``. With "bfloat16" as ``precision``, autocast is on."""

    def __init__(self, workload: Workload, device: str, precision: str = "float32") -> None:
        self._workload, self._device, self._precision = workload, device, precision
        self._candidate = candidate_for(device)

    def bare(self) -> Candidate:
        """The step without communication."""
        model, *batch = self._placed()
        step = self.step(model, _sgd(model), batch)

        def is_right() -> bool:
            step()
            return True  # the ranks differ, as they should

        return self._candidate("bare", step, is_right)

    def hvdlite(self) -> Candidate:
        """The step with hvdlite's optimizer."""
        model, *batch = self._placed()
        step = self.step(model, _distributed(model), batch)
        return self._candidate("hvdlite", step, has_equal_weights(step, lambda: _sum(model)))

    def observed(self) -> tuple[WaitingStep, Candidate]:
        """The same, which also notes how long it waits after backward; and the reduction alone."""
        model, *batch = self._placed()
        optimizer = _distributed(model)
        waits: list[float] = []

        def finish() -> None:
            begin = time.perf_counter()
            optimizer.synchronize()
            waits.append(time.perf_counter() - begin)
            with optimizer.skip_synchronize():
                optimizer.step()

        def reduce() -> bool:
            optimizer.synchronize()
            return True

        step = self.step(model, optimizer, batch, finish=finish)
        is_right = has_equal_weights(step, lambda: _sum(model))
        return WaitingStep("hvdlite", step, is_right, waits), Candidate("reduction", reduce, reduce)

    def ddp(self, label: str) -> Candidate:
        """The step of torch's DDP, over the process group that is open."""
        model, *batch = self._placed()
        replica = DistributedDataParallel(model)
        replica.broadcast_buffers = False  # as an argument, PyTorch warns of it
        step = self.step(replica, _sgd(replica), batch)
        return self._candidate(label, step, has_equal_weights(step, lambda: _sum(replica)))

    def step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: Sequence[torch.Tensor],
        backward: Callable[[torch.Tensor], Any] = torch.autograd.backward,
        finish: Callable[[], Any] | None = None,
    ) -> Callable[[], None]:
        """Returns the step; ``finish`` comes after backward, by default the optimizer's step."""
        inputs, classes = batch
        finish = finish or optimizer.step
        is_short = self._precision == "bfloat16"

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast(self._device, torch.bfloat16, enabled=is_short):
                found = model(inputs)
                loss = nn.functional.cross_entropy(found.flatten(0, -2), classes)
            backward(loss)
            finish()

        return step

    def rows(self, op: str, measured: Mapping[str, Measured | Times]) -> Group:
        """The rows of what was measured."""
        nbytes = sum(parameter.nbytes for parameter in self._placed()[0].parameters())
        return {
            label: make_row(label, hvd.size(), op, self._precision, nbytes, taken) for label, taken in measured.items()
        }

    def _placed(self) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        return self._workload.placed(hvd.rank(), self._device)


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), _LEARNING_RATE)


def _distributed(model: nn.Module) -> Any:
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return hvd.DistributedOptimizer(_sgd(model), model.named_parameters())


def _sum(model: nn.Module) -> float:
    return sum(parameter.detach().double().sum().item() for parameter in model.parameters())


def hidden_share(group: Group) -> float:
    """The share of the reduction that is over when the last rank ends backward, by the medians; 0 if none."""
    return max(0.0, 1 - group["exposed"].median_us / group["reduction"].median_us)


def _hidden(row: Row, group: Group) -> str:
    return f"{hidden_share(group):.0%}" if row.system == "hvdlite" else ""


def _ratio(row: Row, group: Group) -> str:
    peer = group.get("nccl")
    return f"{row.median_us / peer.median_us:.3f}" if peer and row.system == "hvdlite" else ""


COLUMNS = [*columns("gloo"), Column("hidden", 8, _hidden)]
COLUMNS_ON_GPUS = [
    Column("system", 10, lambda row, group: row.system),
    Column("median ms", 11, lambda row, group: f"{row.median_us / 1e3:.2f}"),
    Column("min ms", 11, lambda row, group: f"{row.min_us / 1e3:.2f}"),
    Column("time/nccl", 11, _ratio),
]
