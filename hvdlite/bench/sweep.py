"""One collective over a range of sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import hvdlite as hvd
from hvdlite.bench.measuring.collectives import COLLECTIVES
from hvdlite.bench.measuring.pattern import fill
from hvdlite.bench.measuring.report import Column, Group, Study, make_row, ratio_columns
from hvdlite.bench.measuring.systems import System, TensorType, candidate_for
from hvdlite.bench.measuring.timing import Candidate, Timed, default_iterations, measure


@dataclass(frozen=True)
class Work:
    """The work to time: ``op`` on a tensor of ``elements`` on every rank."""

    op: str
    kind: TensorType
    elements: int

    @property
    def moved(self) -> int:
        """Bytes of the result."""
        shares = hvd.size() if COLLECTIVES[self.op].is_shared_out else 1
        return self.elements * shares * self.kind.itemsize


Entrant = Callable[[Work], Timed]
"""Makes a candidate for some work, with tensors of its own."""


def entrants(systems: Sequence[System]) -> dict[str, Entrant]:
    """The ``systems``, by label, in the order of the table."""
    return {system.label: partial(_in_process, system) for system in systems}


def sweep(
    entrants: Mapping[str, Entrant],
    kind: TensorType,
    op: str,
    sizes: Sequence[int],
    iterations: int | None,
    warmup: int,
) -> Study:
    """The study of ``op`` for ``sizes``, in bytes, rounded to whole elements (of every rank, for an allgather)."""
    groups = (measure_size(entrants, kind, op, nbytes, iterations, warmup) for nbytes in sizes)
    return Study(f"{op} of {kind.dtype}", _columns(list(entrants), kind), groups)


def measure_size(
    entrants: Mapping[str, Entrant], kind: TensorType, op: str, nbytes: int, iterations: int | None, warmup: int
) -> Group:
    """The rows of one size."""
    collective, size = COLLECTIVES[op], hvd.size()
    shares = size if collective.is_shared_out else 1
    work = Work(op, kind, max(1, nbytes // kind.itemsize // shares))
    candidates = [enter(work) for enter in entrants.values()]
    times = measure(candidates, iterations or default_iterations(nbytes), warmup)
    factor = collective.bus_factor(size)
    return {label: make_row(label, size, op, kind.dtype, work.moved, taken, factor) for label, taken in times.items()}


def _in_process(system: System, work: Work) -> Candidate:
    collective, rank, size = COLLECTIVES[work.op], hvd.rank(), hvd.size()
    tensor = system.zeros(work.kind, work.elements)
    name = f"bench.{system.label}.{work.op}.{work.kind.dtype}.{work.elements}"

    def is_right() -> bool:
        fill(tensor, rank)
        return collective.is_right(collective.run(system, tensor, name), size)

    return candidate_for(work.kind.device)(system.label, lambda: collective.run(system, tensor, name), is_right)


def _columns(labels: Sequence[str], kind: TensorType) -> list[Column]:
    return [
        Column("system", 10, lambda row, group: row.system),
        Column("bytes", 11, lambda row, group: str(row.bytes)),
        Column("elements", 10, lambda row, group: str(row.bytes // kind.itemsize)),
        Column("dtype", 8, lambda row, group: row.dtype),
        Column("op", 9, lambda row, group: row.op),
        Column("median µs", 11, lambda row, group: f"{row.median_us:.1f}"),
        Column("min µs", 11, lambda row, group: f"{row.min_us:.1f}"),
        Column("p99 µs", 11, lambda row, group: f"{row.p99_us:.1f}"),
        Column("CPU µs", 11, lambda row, group: "" if row.processor_us is None else f"{row.processor_us:.1f}"),
        Column("algbw GB/s", 10, lambda row, group: f"{row.algbw_GBps:.3f}"),
        Column("busbw GB/s", 10, lambda row, group: f"{row.busbw_GBps:.3f}"),
        *ratio_columns(labels),
    ]
