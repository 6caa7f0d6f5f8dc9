"""The command line of the benchmark.

All ranks parse the same arguments and measure together; rank 0 alone prints. It speaks for all of them also when the
arguments are wrong: the other ranks then end quietly, so that no launcher ends rank 0 before its line is out.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

import hvdlite as hvd
from hvdlite.bench.collectives import COLLECTIVES
from hvdlite.bench.many import many
from hvdlite.bench.report import Row, Study, heading, lines, to_json
from hvdlite.bench.sizes import parse_size, parse_sizes
from hvdlite.bench.sweep import sweep
from hvdlite.bench.systems import OTHERS, TensorType, open_systems
from hvdlite.core.dtypes import DType
from hvdlite.errors import HvdError
from hvdlite.session import current
from hvdlite.settings import Settings

_DEFAULT_SIZES = "1K,256K,4M,16M,256M"
_DTYPES = [str(dtype) for dtype in DType if dtype is not DType.BOOL]
_STEPS = 20


class _Parsed(click.ParamType[Any]):
    """A value that ``parse`` understands or refuses with ValueError."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), parameter, context)


def _report_file(path: str) -> Path:
    if not Path(path).absolute().parent.is_dir():
        raise ValueError(f"the folder of {path} does not exist; make it first.")
    return Path(path)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--sizes", type=_Parsed("SIZES", parse_sizes), default=_DEFAULT_SIZES, show_default=True,
              help="Bytes: a list, with ranges such as 1K:256M:*4.")  # fmt: skip
@click.option("--op", type=click.Choice(list(COLLECTIVES)), default="allreduce", show_default=True)
@click.option("--dtype", type=click.Choice(_DTYPES), default="float32", show_default=True, metavar="DTYPE",
              help=f"One of {', '.join(_DTYPES)}.")  # fmt: skip
@click.option("--iters", "iterations", type=click.IntRange(min=1), metavar="N",
              help=f"Timed iterations. [default: 10 to 500 by size; {_STEPS} steps]")  # fmt: skip
@click.option("--warmup", type=click.IntRange(min=0), default=2, show_default=True, metavar="N",
              help="Untimed iterations before every block of timed ones.")  # fmt: skip
@click.option("--plane", type=click.Choice(["auto", "shm", "ring"]), help="Data plane; else HVDLITE_PLANE decides.")
@click.option("--compare", type=click.Choice(list(OTHERS)), help="Measure this as well, in turns with hvdlite.")
@click.option("--many", "step", type=(click.IntRange(min=1), _Parsed("BYTES", parse_size)), metavar="T BYTES",
              help="A step of T small tensors of BYTES each.")  # fmt: skip
@click.option("--train", "trains", is_flag=True, help="The step of a transformer: bare, hvdlite, and DDP over Gloo.")
@click.option("--json", "file", type=_Parsed("FILE", _report_file), help="Write the rows to FILE, too.")
@click.pass_context
def bench(
    context: click.Context,
    sizes: tuple[int, ...],
    op: str,
    dtype: str,
    iterations: int | None,
    warmup: int,
    plane: str | None,
    compare: str | None,
    step: tuple[int, int] | None,
    trains: bool,
    file: Path | None,
) -> None:
    """Measures collectives among all ranks of the job. Start it with: hvdrun -np N python -m hvdlite.bench"""
    _refuse_ignored(context, trains, step is not None)
    others = ["gloo"] if trains else [compare] if compare else []
    kind = TensorType(dtype, uses_torch=bool(others) or dtype == "bfloat16")  # numpy has no bfloat16
    if kind.uses_torch:
        _require_torch("--train" if trains else f"--compare {compare}" if compare else f"--dtype {dtype}")
    if "gloo" in others:
        _require_gloo_takes(dtype)
    if plane is not None:
        os.environ["HVDLITE_PLANE"] = plane
    with open_systems(others, kind.uses_torch) as systems:
        if trains:
            study = _training(iterations or _STEPS, warmup)
        elif step is not None:
            study = many(systems, kind, *step, iterations or _STEPS, warmup)
        else:
            study = sweep(systems, kind, op, sizes, iterations, warmup)
        rows = _run(study)
        if file is not None and hvd.rank() == 0:
            file.write_text(to_json(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark and returns the exit code: 2 for wrong arguments, 1 for results or peers that failed."""
    try:
        rank = Settings.read().rank
        bench.main(arguments, "python -m hvdlite.bench", standalone_mode=False)
    except click.Abort:
        return 130
    except click.ClickException as error:  # known before anything was measured, and the same on all ranks
        return _fail(f"{error.format_message()} See 'python -m hvdlite.bench --help'.", 2) if rank == 0 else 0
    except ValueError as error:  # a setting
        return _fail(str(error), 2)
    except (HvdError, OSError, MemoryError) as error:
        return _fail(str(error), 1)
    return 0


def _fail(message: str, code: int) -> int:
    print(f"hvdlite.bench: {' '.join(message.split())}", file=sys.stderr)
    return code


def _refuse_ignored(context: click.Context, trains: bool, is_step: bool) -> None:
    """Raises UsageError for options that the chosen mode would ignore."""
    if trains and is_step:
        raise click.UsageError("--many and --train exclude each other; give one of them.")
    mode, ignored = (
        ("--train", ("sizes", "op", "dtype")) if trains else ("--many", ("sizes", "op")) if is_step else ("", ())
    )
    for name in ignored:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name} means nothing with {mode}; leave it out.")


def _require_torch(purpose: str) -> None:
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise click.UsageError(
            f"{purpose} needs PyTorch ({error}); install it with pip install 'hvdlite[torch]'."
        ) from None


def _require_gloo_takes(dtype: str) -> None:
    from hvdlite.bench.gloo import DTYPES

    if dtype not in DTYPES:
        raise click.UsageError(f"Gloo does not take {dtype}; it takes {', '.join(sorted(DTYPES))}.")


def _training(steps: int, warmup: int) -> Study:
    from hvdlite.bench.train import train  # it imports torch

    return train(steps, warmup)


def _run(study: Study) -> list[Row]:
    """Measures, and prints on rank 0 as figures come."""
    rows: list[Row] = []
    is_speaker = hvd.rank() == 0
    if is_speaker:
        print(f"# hvdlite {hvd.__version__}, {hvd.size()} ranks, data plane {current().plane_name}: {study.headline}")
        print(heading(study.columns), flush=True)
    for group in study.groups:
        rows.extend(group.values())
        if is_speaker:
            print(*lines(group, study.columns), sep="\n", flush=True)
    return rows
