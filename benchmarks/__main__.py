"""``hvdrun -np N python -m benchmarks``: a sweep beside all that hvdlite can be compared with on CPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.mpi.libraries import DTYPES, LIBRARIES
from benchmarks.mpi.peers import WORDS, open_jobs
from hvdlite.bench.cli import JSON, MARKDOWN, SWEEP, TIMING, run_command, run_study, with_options
from hvdlite.bench.limit import LIMITS
from hvdlite.bench.peers import open_systems, parse_peers, require_dtype, require_gpu, tensor_type
from hvdlite.bench.sweep import entrants, sweep


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@with_options(*SWEEP, *TIMING)
@click.option("--compare", "peers", multiple=True, metavar="LIST",
              help="Measure also gloo, oneccl, impi, openmpi, openmpi-sm, mpich; mpi is the last four.")  # fmt: skip
@with_options(JSON, MARKDOWN)
def beside(
    sizes: tuple[int, ...],
    op: str,
    dtype: str,
    plane: str | None,
    registers: bool,
    shows_limit: bool,
    iterations: int | None,
    warmup: int,
    peers: tuple[str, ...],
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Measures a collective among all ranks of the job. Start it with: hvdrun -np N python -m benchmarks"""
    labels = parse_peers(peers, WORDS)
    libraries = [label for label in labels if label in LIBRARIES]
    others = [label for label in labels if label not in LIBRARIES]
    kind = tensor_type(dtype, others)
    require_gpu(others, is_asked=False)
    if libraries:
        require_dtype(dtype, DTYPES, "MPI")
    if plane is not None:
        os.environ["HVDLITE_PLANE"] = plane
    with open_systems(others, kind, registers) as systems, open_jobs(libraries) as (jobs, notes):
        entering = entrants(systems) | jobs | (LIMITS if shows_limit else {})
        run_study(sweep(entering, kind, op, sizes, iterations, warmup), notes, json_file, markdown_file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark and returns the exit code."""
    return run_command(beside, "benchmarks", arguments)


if __name__ == "__main__":
    sys.exit(main())
