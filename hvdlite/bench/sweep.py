"""One collective over a range of sizes."""

from __future__ import annotations

from collections.abc import Sequence

import hvdlite as hvd
from hvdlite.bench.collectives import COLLECTIVES, fill
from hvdlite.bench.report import Column, Group, Study, make_row, ratio_columns
from hvdlite.bench.systems import System, TensorType
from hvdlite.bench.timing import Candidate, measure

_MOST_BYTES = 512 << 20  # of all iterations of one size, unless that makes them too few
_FEWEST, _MOST = 10, 500


def default_iterations(nbytes: int) -> int:
    """Many for small tensors, whose times scatter; few for large ones, whose times are long."""
    return min(max(_MOST_BYTES // nbytes, _FEWEST), _MOST)


def sweep(
    systems: Sequence[System], kind: TensorType, op: str, sizes: Sequence[int], iterations: int | None, warmup: int
) -> Study:
    """The study of ``op`` for ``sizes``, in bytes, rounded to whole elements (of every rank, for an allgather)."""
    groups = (
        _measure_size(systems, kind, op, nbytes, iterations or default_iterations(nbytes), warmup) for nbytes in sizes
    )
    return Study(f"{op} of {kind.dtype}", _columns(systems, kind), groups)


def _measure_size(
    systems: Sequence[System], kind: TensorType, op: str, nbytes: int, iterations: int, warmup: int
) -> Group:
    collective, rank, size = COLLECTIVES[op], hvd.rank(), hvd.size()
    shares = size if collective.is_shared_out else 1
    elements = max(1, nbytes // kind.itemsize // shares)
    tensor = kind.zeros(elements)
    name = f"bench.{op}.{kind.dtype}.{elements}"

    def candidate(system: System) -> Candidate:
        def is_right() -> bool:
            fill(tensor, rank)
            return collective.is_right(collective.run(system, tensor, name), size)

        return Candidate(system.label, lambda: collective.run(system, tensor, name), is_right)

    times = measure([candidate(system) for system in systems], iterations, warmup)
    moved, factor = elements * shares * kind.itemsize, collective.bus_factor(size)
    return {label: make_row(label, size, op, kind.dtype, moved, taken, factor) for label, taken in times.items()}


def _columns(systems: Sequence[System], kind: TensorType) -> list[Column]:
    return [
        Column("system", 9, lambda row, group: row.system),
        Column("bytes", 11, lambda row, group: str(row.bytes)),
        Column("elements", 10, lambda row, group: str(row.bytes // kind.itemsize)),
        Column("dtype", 8, lambda row, group: row.dtype),
        Column("op", 9, lambda row, group: row.op),
        Column("median µs", 11, lambda row, group: f"{row.median_us:.1f}"),
        Column("min µs", 11, lambda row, group: f"{row.min_us:.1f}"),
        Column("algbw GB/s", 10, lambda row, group: f"{row.algbw_GBps:.3f}"),
        Column("busbw GB/s", 10, lambda row, group: f"{row.busbw_GBps:.3f}"),
        *ratio_columns([system.label for system in systems]),
    ]
