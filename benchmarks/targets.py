"""``hvdrun -np N python -m benchmarks.targets``: what hvdlite aims at within a host, and how far it is.

All-reduces in place are measured next to Gloo, MPI and the memory alone. A target is a ratio of speeds that hvdlite
shall reach at least, for any memory and for registered memory. *MPI* is the better of the libraries at that size;
`limit` says what *memcpy* and *update* are. There is no target for the latter, which nothing can outrun by much.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click

import hvdlite as hvd
from benchmarks.mpi.libraries import DTYPES as MPI_DTYPES
from benchmarks.mpi.libraries import LIBRARIES
from benchmarks.mpi.peers import open_jobs
from hvdlite.bench.cli import MARKDOWN, TIMING, run_command, run_study, with_options
from hvdlite.bench.limit import LIMITS
from hvdlite.bench.measuring.report import Column, Group, Row, Study, ratio_of
from hvdlite.bench.measuring.systems import OWN, TensorType
from hvdlite.bench.peers import open_systems, require_torch
from hvdlite.bench.sweep import Entrant, entrants, measure_size
from hvdlite.settings import Start

Bounds = tuple[float | None, float | None]
"""The least speed-up for any memory, and for registered memory; None where there is no target."""

_NONE: Final[Bounds] = (None, None)


class Target(NamedTuple):
    """The bounds of one size, by what hvdlite is compared with."""

    ranks: int
    dtype: str
    nbytes: int
    gloo: Bounds
    mpi: Bounds = _NONE
    memcpy: Bounds = _NONE


TARGETS: Final = (
    Target(2, "float32", 1 << 10, gloo=(3.03, 3.03)),
    Target(2, "float32", 64 << 10, gloo=(2.5, 2.5), mpi=(0.4, 0.4)),
    Target(2, "float32", 256 << 10, gloo=(2.5, 2.5), mpi=(0.71, 0.91)),
    Target(2, "float32", 1 << 20, gloo=(2.5, 2.5), mpi=(0.91, 1.25)),
    Target(2, "float32", 4 << 20, gloo=(4, 6), mpi=(1, 1.5)),
    Target(2, "float32", 16 << 20, gloo=(5, 10), mpi=(1, 2)),
    Target(2, "float32", 64 << 20, gloo=(4.5, 8), mpi=(1.25, 2.5)),
    Target(2, "float32", 256 << 20, gloo=(4.5, 8), mpi=(1.25, 2.5), memcpy=(0.6, 1.0)),
    Target(2, "float16", 16 << 20, gloo=(5, 10)),
    Target(2, "bfloat16", 16 << 20, gloo=(5, 10)),
    Target(4, "float32", 256 << 20, gloo=(4, 4.5), mpi=(1.6, 1.8)),
)
_BY_SIZE: Final = {(target.ranks, target.dtype, target.nbytes): target for target in TARGETS}
_WIDTH: Final = 24


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@with_options(*TIMING, MARKDOWN)
def targets(iterations: int | None, warmup: int, markdown_file: Path | None) -> None:
    """Holds all-reduces against their targets. Start it with: hvdrun -np N python -m benchmarks.targets"""
    sizes = sorted({target.ranks for target in TARGETS})
    if Start.read().size not in sizes:
        numbers = " or ".join(map(str, sizes))
        raise click.UsageError(f"there are targets for {numbers} ranks only; start as many with hvdrun -np.")
    require_torch("benchmarks.targets")
    with (
        open_systems(["gloo"], TensorType("float32", uses_torch=True), registers=True) as systems,
        open_jobs(LIBRARIES) as (jobs, notes),
    ):
        study = against_targets(entrants(systems) | jobs | LIMITS, iterations, warmup)
        run_study(study, notes, None, markdown_file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    return run_command(targets, "benchmarks.targets", arguments)


def against_targets(entrants: Mapping[str, Entrant], iterations: int | None, warmup: int) -> Study:
    """The study of all targets for this number of ranks, which has some."""
    columns = [
        Column("ranks", 6, lambda row, group: str(row.ranks)),
        Column("system", 10, lambda row, group: row.system),
        Column("dtype", 8, lambda row, group: row.dtype),
        Column("bytes", 11, lambda row, group: str(row.bytes)),
        Column("median µs", 11, lambda row, group: f"{row.median_us:.1f}"),
        Column("algbw GB/s", 10, lambda row, group: f"{row.algbw_GBps:.3f}"),
        Column("of Gloo (target)", _WIDTH, _cell(["gloo"], lambda target: target.gloo)),
        Column("of MPI (target)", _WIDTH, _cell(list(LIBRARIES), lambda target: target.mpi)),
        Column("of memcpy (target)", _WIDTH, _cell(["memcpy"], lambda target: target.memcpy)),
        Column("of update", 10, _cell(["update"], lambda target: _NONE)),
    ]
    return Study("allreduce against its targets", columns, _measure_targets(entrants, iterations, warmup))


def _measure_targets(entrants: Mapping[str, Entrant], iterations: int | None, warmup: int) -> Iterator[Group]:
    for target in TARGETS:
        if target.ranks == hvd.size():
            taking = {
                label: entrant
                for label, entrant in entrants.items()
                if label not in LIBRARIES or target.dtype in MPI_DTYPES
            }
            kind = TensorType(target.dtype, uses_torch=True)
            yield measure_size(taking, kind, "allreduce", target.nbytes, iterations, warmup)


def _cell(peers: Sequence[str], bounds: Callable[[Target], Bounds]) -> Callable[[Row, Group], str]:
    """The speed-up over the best of ``peers``, with the bound for the memory of the row.

    A bound is missed if the 95 % interval of the speed-up lies wholly below it, and ≈ if only the median does.
    """

    def text(row: Row, group: Group) -> str:
        present = [group[label] for label in peers if label in group]
        if row.system not in OWN or not present:
            return ""
        best = min(present, key=lambda peer: peer.median_us)
        ratio = ratio_of(row, best)
        speed_up = 1 / ratio.median
        bound = bounds(_BY_SIZE[row.ranks, row.dtype, row.bytes])[OWN.index(row.system)]
        name = f" {best.system}" if len(peers) > 1 else ""
        if bound is None:
            return f"{speed_up:.2f}×{name}"
        most = 1 / min(ratio.interval or (ratio.median,))
        verdict = "≥" if speed_up >= bound else "≈" if most >= bound else "missed"
        return f"{speed_up:.2f}×{name} ({verdict} {bound:g})"

    return text


if __name__ == "__main__":
    sys.exit(main())
