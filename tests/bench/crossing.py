"""One rank of a job that `tests.bench.hosts` starts: times an all-reduce, and counts what it sends over the network.

    python -m tests.bench.crossing BYTES ITERATIONS [--bf16]

Each rank prints a line of JSON: ``median_s`` of an all-reduce of float32 in place, on its slowest rank; ``sent``, the
bytes that left its host for one. ``--bf16`` measures in turns with it the same bytes as gradients of 16 parameters
that `DistributedOptimizer` reduces, plain (``parts_s``) and with ``Compression.bf16`` (``bf16_s``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

import hvdlite as hvd
from hvdlite.bench.measuring.timing import Candidate, measure

_COUNTED = 4  # all-reduces whose bytes are counted
_WARMUP = 2
_PARTS = 16


def main(nbytes: int, iterations: int, *switches: str) -> None:
    hvd.init()
    candidates = [_plain(nbytes)]
    if "--bf16" in switches:
        candidates += _in_parts(nbytes)
    times = {label: float(np.median(taken.times)) for label, taken in measure(candidates, iterations, _WARMUP).items()}
    print(json.dumps({**times, "sent": _sent(candidates[0].run)}), flush=True)
    hvd.shutdown()


def _plain(nbytes: int) -> Candidate:
    tensor = np.ones(nbytes // 4, np.float32)
    return _candidate("median_s", lambda: [hvd.allreduce_(tensor, op=hvd.Average, name="plain")], [tensor])


def _in_parts(nbytes: int) -> list[Candidate]:
    """As gradients, of which the optimizer reduces the first while backward makes the others."""
    import torch

    import hvdlite.torch as front_end

    gradients = [torch.ones(nbytes // 4 // _PARTS) for _ in range(_PARTS)]

    def candidate(label: str, compression: type[front_end.Compressor]) -> Candidate:
        parameters = [torch.zeros_like(gradient, requires_grad=True) for gradient in gradients]
        named = [(f"{label}.{part}", parameter) for part, parameter in enumerate(parameters)]
        optimizer = front_end.DistributedOptimizer(torch.optim.SGD(parameters), named, compression=compression)

        def run() -> list[Any]:
            optimizer.zero_grad()
            torch.autograd.backward(parameters, gradients)  # which copies them, one after the other
            optimizer.synchronize()
            return [parameter.grad for parameter in parameters]

        return _candidate(label, run, gradients)

    return [candidate("parts_s", front_end.Compression.none), candidate("bf16_s", front_end.Compression.bf16)]


def _candidate(label: str, run: Callable[[], list[Any]], tensors: list[Any]) -> Candidate:
    def is_right() -> bool:
        for tensor in tensors:
            tensor[:] = 2 * hvd.rank()
        return all(bool((result == hvd.size() - 1).all()) for result in run())

    return Candidate(label, run, is_right)


def _sent(run: Callable[[], Any]) -> float:
    hvd.barrier()
    before = _sent_by_host()
    for _ in range(_COUNTED):
        run()
    hvd.barrier()
    return (_sent_by_host() - before) / _COUNTED


def _sent_by_host() -> int:
    return sum(nic.bytes_sent for name, nic in psutil.net_io_counters(pernic=True).items() if name != "lo")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
