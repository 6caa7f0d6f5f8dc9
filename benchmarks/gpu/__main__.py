"""The command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

import hvdlite as hvd
from hvdlite.bench.cli import (
    JSON,
    MODELS,
    PRECISIONS,
    STEPS,
    TIMING,
    Parsed,
    report_file,
    run_command,
    run_study,
    with_options,
)
from hvdlite.bench.many import many
from hvdlite.bench.measuring.systems import TensorType
from hvdlite.bench.peers import require_gpu, require_torch
from hvdlite.bench.sizes import parse_size, parse_sizes

_KIND = TensorType("float32", uses_torch=True, device="cuda")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def gpu() -> None:
    """Takes calls on GPUs apart. Start it with: hvdrun -np N python -m benchmarks.gpu"""


@gpu.command()
@click.option("--sizes", type=Parsed("SIZES", parse_sizes), default="1K,64K,1M", show_default=True, help="Bytes.")
@with_options(*TIMING, JSON)
def parts(sizes: tuple[int, ...], iterations: int | None, warmup: int, json_file: Path | None) -> None:
    """What a blocking all-reduce consists of."""
    with _session() as notes:
        from benchmarks.gpu.parts import parts

        run_study(parts(_KIND, sizes, iterations, warmup), notes, json_file, None)


@gpu.command()
@click.argument("tensors", type=click.IntRange(min=1))
@click.argument("nbytes", type=Parsed("BYTES", parse_size), metavar="BYTES")
@with_options(*TIMING, JSON)
def fusion(tensors: int, nbytes: int, iterations: int | None, warmup: int, json_file: Path | None) -> None:
    """A step of TENSORS of BYTES each, fused in each way."""
    with _session() as notes:
        from benchmarks.gpu.fusion import WAYS, Fused
        from hvdlite.bench.measuring.systems import Hvdlite

        systems = [Hvdlite(uses_torch=True), *map(Fused, WAYS)]
        run_study(many(systems, _KIND, tensors, nbytes, iterations or STEPS, warmup), notes, json_file, None)


@gpu.command()
@click.argument("file", type=Parsed("FILE", report_file))
@click.option("--model", type=click.Choice(MODELS), default="transformer", show_default=True)
@click.option("--precision", type=click.Choice(PRECISIONS), default="float32", show_default=True)
@with_options(*TIMING, JSON)
def trace(file: Path, model: str, precision: str, **given: Any) -> None:
    """Writes to FILE, for chrome://tracing, where in a training step the host submits gradients."""
    with _session() as notes:
        from benchmarks.gpu.trace import trace

        study = trace(model, precision, given["iterations"] or STEPS, given["warmup"], file)
        run_study(study, notes, given["json_file"], None)


@contextmanager
def _session() -> Iterator[list[str]]:
    """A session of ranks with GPUs; yields notes about them."""
    require_torch("benchmarks.gpu")
    require_gpu([], is_asked=True)
    from hvdlite.bench.measuring.on_gpu import use_own_gpu

    hvd.init()
    try:
        yield use_own_gpu()
    finally:
        hvd.shutdown()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    return run_command(gpu, "benchmarks.gpu", arguments)


if __name__ == "__main__":
    sys.exit(main())
