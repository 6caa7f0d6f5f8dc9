"""Where in a step the host submits gradients: a trace for chrome://tracing or Perfetto, and how much it shows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import hvdlite.torch as hvd
from hvdlite.bench.measuring.report import Column, Group, Study, make_row
from hvdlite.bench.training.torch_models import ON_GPUS
from hvdlite.bench.training.with_torch import Steps
from hvdlite.host.descriptors import write


class Span(NamedTuple):
    """What the host did, from and until when in seconds."""

    name: str
    begin: float
    end: float


def trace(model: str, precision: str, iterations: int, warmup: int, file: Path) -> Study:
    """The study of hvdlite's step; rank 0 writes the last one to ``file``."""
    columns = [
        Column("part", 12, lambda row, group: row.system),
        Column("median ms", 11, lambda row, group: f"{row.median_us / 1e3:.3f}"),
        Column("min ms", 11, lambda row, group: f"{row.min_us / 1e3:.3f}"),
        Column("", 44, lambda row, group: row.op),
    ]
    headline = f"what the host does in a step with {ON_GPUS[model].describes}, {precision}"
    return Study(headline, columns, _measure(model, precision, iterations, warmup, file))


def _measure(name: str, precision: str, iterations: int, warmup: int, file: Path) -> Iterator[Group]:
    model, *batch = ON_GPUS[name].placed(hvd.rank(), "cuda")
    spans: list[Span] = []
    begins: dict[nn.Parameter, float] = {}

    def mark(parameter: nn.Parameter) -> None:
        begins[parameter] = time.perf_counter()

    # Hooks run in the order of their registration, so these enclose that of the optimizer.
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(mark)  # type: ignore[no-untyped-call]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.001), model.named_parameters())
    for key, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda parameter, key=key: spans.append(Span(f"submit {key}", begins[parameter], time.perf_counter()))
        )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    backward = _spanned(spans, "backward", torch.autograd.backward)
    step = Steps(ON_GPUS[name], "cuda", precision).step(model, optimizer, batch, backward)
    rows, inside = [], 0
    for _ in range(warmup + iterations):
        spans.clear()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        given = time.perf_counter()
        torch.cuda.synchronize()
        spans += [Span("step", begin, given), Span("the GPU's rest", given, time.perf_counter())]
        _, began, ended = next(span for span in spans if span.name == "backward")
        submits = [span for span in spans if span.name.startswith("submit ")]
        inside = sum(began <= span.begin and span.end <= ended for span in submits)
        taken = sum(span.end - span.begin for span in submits)
        rows.append((ended - began, taken, given - ended, spans[-1].end - begin))
    if hvd.rank() == 0:
        write(file, _chrome(spans).encode())
    notes = [f"{len(begins)} gradients", f"{inside} of {len(submits)} inside backward", "until step returns", ""]
    parts = zip(("backward", "submits", "after", "whole"), notes, np.array(rows[warmup:]).T, strict=True)
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    yield {part: make_row(part, hvd.size(), what, precision, nbytes, times) for part, what, times in parts}


def _spanned(spans: list[Span], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*arguments: Any) -> Any:
        begin = time.perf_counter()
        result = call(*arguments)
        spans.append(Span(name, begin, time.perf_counter()))
        return result

    return timed


def _chrome(spans: list[Span]) -> str:
    start = min(span.begin for span in spans)
    events = [
        {
            "name": span.name,
            "ph": "X",
            "pid": 0,
            "tid": int(span.name.startswith("submit ")),  # autograd has a thread of its own for each device
            "ts": (span.begin - start) * 1e6,
            "dur": (span.end - span.begin) * 1e6,
        }
        for span in spans
    ]
    return json.dumps({"traceEvents": events})
