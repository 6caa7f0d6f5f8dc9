"""A step of many small tensors: all are submitted, then all are waited for, like the gradients of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import hvdlite as hvd
from hvdlite.bench.measuring.collectives import COLLECTIVES
from hvdlite.bench.measuring.pattern import fill
from hvdlite.bench.measuring.report import Column, Group, Study, make_row, ratio_columns
from hvdlite.bench.measuring.systems import System, TensorType, candidate_for
from hvdlite.bench.measuring.timing import Candidate, measure


def many(systems: Sequence[System], kind: TensorType, count: int, nbytes: int, iterations: int, warmup: int) -> Study:
    """The study of all-reducing ``count`` tensors in one step, each of ``nbytes`` rounded to whole elements."""
    columns = [
        Column("system", 10, lambda row, group: row.system),
        Column("tensors", 8, lambda row, group: str(count)),
        Column("bytes each", 11, lambda row, group: str(row.bytes // count)),
        Column("median ms", 11, lambda row, group: f"{row.median_us / 1e3:.2f}"),
        Column("min ms", 11, lambda row, group: f"{row.min_us / 1e3:.2f}"),
        *ratio_columns([system.label for system in systems]),
    ]
    headline = f"a step of {count} tensors, allreduce of {kind.dtype}"
    return Study(headline, columns, _measure_step(systems, kind, count, nbytes, iterations, warmup))


def _measure_step(
    systems: Sequence[System], kind: TensorType, count: int, nbytes: int, iterations: int, warmup: int
) -> Iterator[Group]:
    allreduce, rank, size = COLLECTIVES["allreduce"], hvd.rank(), hvd.size()
    elements = max(1, nbytes // kind.itemsize)
    names = [f"bench.many.{kind.dtype}.{elements}.{index}" for index in range(count)]

    def candidate(system: System) -> Candidate:
        tensors = [system.zeros(kind, elements) for _ in range(count)]

        def is_right() -> bool:
            for tensor in tensors:
                fill(tensor, rank)
            system.allreduce_all(tensors, names)
            return all(allreduce.is_right(tensor, size) for tensor in tensors)

        return candidate_for(kind.device)(system.label, lambda: system.allreduce_all(tensors, names), is_right)

    times = measure([candidate(system) for system in systems], iterations, warmup)
    op, moved, factor = f"allreduce x {count}", count * elements * kind.itemsize, allreduce.bus_factor(size)
    yield {label: make_row(label, size, op, kind.dtype, moved, taken, factor) for label, taken in times.items()}
