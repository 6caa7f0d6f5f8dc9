"""A training step on GPUs: alone on every rank, with hvdlite's optimizer, and in torch's DDP over NCCL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hvdlite.torch as hvd
from hvdlite.bench.gpu.timed import OnGpu
from hvdlite.bench.measuring.report import Column, Group, Row, Study, make_row
from hvdlite.bench.measuring.timing import Candidate, measure
from hvdlite.bench.training.figures import has_equal_weights
from hvdlite.bench.training.workloads import WORKLOADS, Workload, on_gpu

_LEARNING_RATE = 0.001


def train(model: str, precision: str, iterations: int, warmup: int) -> Study:
    """The study of the three steps; DDP's only if a process group is open."""
    workload = WORKLOADS[model]
    headline = f"training step on GPUs, {workload.describes} on each rank, {precision}"
    return Study(headline, COLUMNS, _measure_steps(model, workload, precision, iterations, warmup))


def _measure_steps(name: str, workload: Workload, precision: str, iterations: int, warmup: int) -> Iterator[Group]:
    candidates = [_bare(workload, precision), _hvdlite(workload, precision)]
    if dist.is_initialized():
        candidates.append(_ddp(workload, precision))
    nbytes = sum(parameter.nbytes for parameter in on_gpu(workload, 0)[0].parameters())
    times = measure(candidates, iterations, warmup)
    yield {
        label: make_row(label, hvd.size(), f"train {name}", precision, nbytes, each) for label, each in times.items()
    }


def _bare(workload: Workload, precision: str) -> Candidate:
    model, *batch = on_gpu(workload, hvd.rank())
    step = stepper(model, _sgd(model), batch, precision)

    def is_right() -> bool:
        step()
        return True  # the ranks differ, as they should

    return OnGpu("bare", step, is_right)


def _hvdlite(workload: Workload, precision: str) -> Candidate:
    model, *batch = on_gpu(workload, hvd.rank())
    step = stepper(model, hvd.DistributedOptimizer(_sgd(model), model.named_parameters()), batch, precision)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return OnGpu("hvdlite", step, has_equal_weights(step, lambda: _sum(model)))


def _ddp(workload: Workload, precision: str) -> Candidate:
    model, *batch = on_gpu(workload, hvd.rank())
    replica = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()], broadcast_buffers=False)
    step = stepper(replica, _sgd(replica), batch, precision)
    return OnGpu("nccl", step, has_equal_weights(step, lambda: _sum(replica)))


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), _LEARNING_RATE)


def stepper(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: list[torch.Tensor],
    precision: str,
    backward: Callable[[torch.Tensor], Any] = torch.autograd.backward,
) -> Callable[[], None]:
    """Returns the step, computed in bfloat16 where autocast does so if that is the ``precision``."""
    inputs, classes = batch

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bfloat16"):
            found = model(inputs)
            loss = nn.functional.cross_entropy(found.flatten(0, -2), classes)
        backward(loss)
        optimizer.step()

    return step


def _sum(model: nn.Module) -> float:
    return sum(parameter.detach().double().sum().item() for parameter in model.parameters())


def _ratio(row: Row, group: Group) -> str:
    peer = group.get("nccl")
    return f"{row.median_us / peer.median_us:.3f}" if peer and row.system == "hvdlite" else ""


COLUMNS = [
    Column("system", 10, lambda row, group: row.system),
    Column("median ms", 11, lambda row, group: f"{row.median_us / 1e3:.2f}"),
    Column("min ms", 11, lambda row, group: f"{row.min_us / 1e3:.2f}"),
    Column("time/nccl", 11, _ratio),
]
