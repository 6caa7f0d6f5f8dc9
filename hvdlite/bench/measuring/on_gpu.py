"""Iterations on a GPU, timed by CUDA's events: from the call to the end of its work on the stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

import hvdlite as hvd
from hvdlite.bench.measuring.timing import Candidate, Clock, Times
from hvdlite.builds import nccl_built
from hvdlite.planes.nccl.library import dotted


@dataclass(frozen=True)
class OnGpu(Candidate):
    """Work on the current stream. Each iteration begins and ends with an idle stream."""

    def block(self, length: int, warmup: int, clock: Clock) -> Times:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        times = np.empty(length)
        for _ in range(warmup):
            self.run()
        torch.cuda.synchronize()
        for iteration in range(length):
            begin.record()
            self.run()
            end.record()
            end.synchronize()
            times[iteration] = begin.elapsed_time(end) / 1e3
        return times


def use_own_gpu() -> list[str]:
    """Makes this rank's GPU the current one; ranks share GPUs where there are fewer. Returns notes about them.

    hvdlite must be initialized.
    """
    count = torch.cuda.device_count()
    torch.cuda.set_device(hvd.local_rank() % count)
    version = nccl_built()
    notes = [f"GPU {torch.cuda.get_device_name()}, {f'NCCL {dotted(version)}' if version else 'no NCCL'}"]
    if hvd.local_size() > count:
        notes.append(f"{hvd.local_size()} ranks share {count} GPU(s): compare what ran here, and nothing else")
    return notes
