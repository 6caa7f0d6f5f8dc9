"""One blocking all-reduce on a GPU, and what it consists of.

*submit* is the call that begins it, *negotiate* lasts until all ranks have agreed and the executor calls the plane,
*launch* is the plane's work, *return* lasts until the caller has its result, and *kernel* until the GPU is done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import hvdlite.torch as hvd
from hvdlite import Max, Sum
from hvdlite.bench.measuring.collectives import COLLECTIVES
from hvdlite.bench.measuring.pattern import fill
from hvdlite.bench.measuring.report import Column, Group, Study, make_row
from hvdlite.bench.measuring.systems import TensorType
from hvdlite.bench.measuring.timing import WrongResult, default_iterations
from hvdlite.session import current

PARTS = ("submit", "negotiate", "launch", "return", "kernel")


def parts(kind: TensorType, sizes: Sequence[int], iterations: int | None, warmup: int) -> Study:
    """The study of a blocking all-reduce of each size, in bytes."""
    columns = [
        Column("part", 10, lambda row, group: row.system),
        Column("bytes", 11, lambda row, group: str(row.bytes)),
        Column("median µs", 11, lambda row, group: f"{row.median_us:.1f}"),
        Column("min µs", 11, lambda row, group: f"{row.min_us:.1f}"),
        Column("share", 8, lambda row, group: f"{row.median_us / group['whole'].median_us:.0%}"),
    ]
    groups = (_measure(kind, size, iterations or default_iterations(size), warmup) for size in sizes)
    return Study(f"a blocking allreduce of {kind.dtype}, in parts", columns, groups)


def _measure(kind: TensorType, nbytes: int, iterations: int, warmup: int) -> Group:
    tensor = kind.zeros(max(1, nbytes // kind.itemsize))
    name = f"bench.parts.{kind.dtype}.{len(tensor)}"
    fill(tensor, hvd.rank())
    if not COLLECTIVES["allreduce"].is_right(hvd.allreduce_(tensor, op=Sum, name=name), hvd.size()):
        raise WrongResult(f"a blocking allreduce gave a wrong result on rank {hvd.rank()}.")
    rows = []
    with _launches(kind.device) as launches:
        for _ in range(warmup + iterations):
            torch.cuda.synchronize()
            points = [time.perf_counter()]
            handle = hvd.allreduce_async_(tensor, op=Sum, name=name)
            points.append(time.perf_counter())
            hvd.synchronize(handle)
            returned = time.perf_counter()
            torch.cuda.synchronize()
            points += [*launches.pop(), returned, time.perf_counter()]
            rows.append(np.diff(points))
    times = np.array(rows[warmup:])
    whole = times.sum(axis=1)
    by_part = dict(zip(PARTS, times.T, strict=True)) | {"whole": whole}
    by_part = {part: hvd.allreduce(torch.tensor(each), op=Max).numpy() for part, each in by_part.items()}
    size = hvd.size()
    return {part: make_row(part, size, "blocking", kind.dtype, tensor.nbytes, each) for part, each in by_part.items()}


@contextmanager
def _launches(device: str) -> Iterator[list[tuple[float, float]]]:
    """Appends to a list when the plane's all-reduce began and ended, while the context is entered."""
    plane: Any = current().everyone.planes[device]
    usual, launches = plane.allreduce, []

    def timed(*arguments: Any) -> Any:
        begin = time.perf_counter()
        launched = usual(*arguments)
        launches.append((begin, time.perf_counter()))
        return launched

    plane.allreduce = timed
    try:
        yield launches
    finally:
        del plane.allreduce
