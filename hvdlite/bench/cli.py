"""The command line of the benchmark.

All ranks parse the same arguments and measure together; rank 0 alone prints. That includes errors in
the arguments: the other ranks then end quietly, so that no launcher kills rank 0 before its line is out.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

import hvdlite as hvd
from hvdlite.bench.limit import LIMITS
from hvdlite.bench.many import many
from hvdlite.bench.measuring.collectives import COLLECTIVES
from hvdlite.bench.measuring.report import Group, Study, heading, lines, to_json, to_markdown
from hvdlite.bench.peers import (
    open_systems,
    parse_peers,
    peers_of_training,
    require_gpu,
    require_keras,
    tensor_type,
)
from hvdlite.bench.sizes import parse_size, parse_sizes
from hvdlite.bench.sweep import entrants, sweep
from hvdlite.errors import HvdError
from hvdlite.host.descriptors import write
from hvdlite.session import current
from hvdlite.settings import Start, table
from hvdlite.tensors.dtypes import DType

_DEFAULT_SIZES = "1K,256K,4M,16M,256M"
_DTYPES = [str(dtype) for dtype in DType if dtype is not DType.BOOL]
_PLANES = next(spec.choices for spec in table() if spec.name == "plane")
STEPS = 20
MODELS = ("resnet50", "transformer", "layers", "tiny")
PRECISIONS = ("float32", "bfloat16")
_IGNORED = {
    "--train": {"--sizes", "--op", "--dtype", "--compare", "--registered", "--limit"},
    "--many": {"--sizes", "--op", "--limit"},
    "--parts": {"--op", "--compare", "--registered", "--limit"},
}
"""By mode: the options that it does not take."""
_ON_GPUS = {"--fuse": "--many", "--model": "--train", "--parts": "", "--precision": "--train", "--trace": "--train"}
"""The options that need a GPU, and the mode that each needs."""


class Parsed(click.ParamType[Any]):
    """A parameter that ``parse`` converts, or refuses with ValueError."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), parameter, context)


def report_file(path: str) -> Path:
    if not path:
        raise ValueError("the name is empty.")
    if not Path(path).absolute().parent.is_dir():
        raise ValueError(f"the folder of {path} does not exist; make it first.")
    return Path(path)


SWEEP = (
    click.option("--sizes", type=Parsed("SIZES", parse_sizes), default=_DEFAULT_SIZES, show_default=True,
                 help="Bytes: a list, with ranges such as 1K:256M:*4."),
    click.option("--op", type=click.Choice(list(COLLECTIVES)), default="allreduce", show_default=True),
    click.option("--dtype", type=click.Choice(_DTYPES), default="float32", show_default=True, metavar="DTYPE",
                 help=f"One of {', '.join(_DTYPES)}."),
    click.option("--plane", type=click.Choice(_PLANES), help="Data plane; else HVDLITE_PLANE decides."),
    click.option("--registered", "registers", is_flag=True, help="Measure hvdlite with registered memory, too."),
    click.option("--limit", "shows_limit", is_flag=True, help="Measure the memory alone, too, without an all-reduce."),
)  # fmt: skip
TIMING = (
    click.option("--iters", "iterations", type=click.IntRange(min=1), metavar="N",
                 help=f"Timed iterations. [default: 15 to 500 by size; {STEPS} steps]"),
    click.option("--warmup", type=click.IntRange(min=0), default=2, show_default=True, metavar="N",
                 help="Untimed iterations before every block of timed ones."),
)  # fmt: skip
JSON = click.option("--json", "json_file", type=Parsed("FILE", report_file), help="Write the rows to FILE, too.")
MARKDOWN = click.option(
    "--markdown", "markdown_file", type=Parsed("FILE", report_file), help="Write the table to FILE, too."
)


def with_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decorator that adds ``options`` to a command, for commands that share some."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@with_options(*SWEEP, *TIMING)
@click.option("--compare", "peers", multiple=True, metavar="LIST",
              help="Measure these as well, in turns with hvdlite: gloo, nccl. With python -m benchmarks, in hvdlite's "
              "sources, also oneccl, impi, openmpi, openmpi-sm, mpich, or mpi for the last four.")  # fmt: skip
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
              help="Where the tensors are.")  # fmt: skip
@click.option("--fuse", "fuses", is_flag=True, help="With --many on GPUs: measure both ways to fuse, too.")
@click.option("--parts", "shows_parts", is_flag=True, help="What a blocking all-reduce on a GPU consists of.")
@click.option("--many", "step", type=(click.IntRange(min=1), Parsed("BYTES", parse_size)), metavar="T BYTES",
              help="A step of T small tensors of BYTES each.")  # fmt: skip
@click.option("--train", "framework", is_flag=False, flag_value="torch", type=click.Choice(["torch", "keras"]),
              help="The step of a transformer: bare, hvdlite, and DDP over Gloo; with keras, which runs on TensorFlow, "
              "MultiWorkerMirroredStrategy instead.")  # fmt: skip
@click.option("--model", type=click.Choice(MODELS), default="transformer", show_default=True,
              help="What --train trains on GPUs.")  # fmt: skip
@click.option("--precision", type=click.Choice(PRECISIONS), default="float32", show_default=True,
              help="What --train computes in on GPUs, bfloat16 by autocast.")  # fmt: skip
@click.option("--trace", "trace_file", type=Parsed("FILE", report_file),
              help="With --train on GPUs: write where in a step the host submits, for chrome://tracing.")  # fmt: skip
@with_options(JSON, MARKDOWN)
@click.pass_context
def bench(
    context: click.Context,
    sizes: tuple[int, ...],
    op: str,
    dtype: str,
    iterations: int | None,
    warmup: int,
    plane: str | None,
    peers: tuple[str, ...],
    registers: bool,
    shows_limit: bool,
    fuses: bool,
    shows_parts: bool,
    step: tuple[int, int] | None,
    framework: str | None,
    model: str,
    precision: str,
    trace_file: Path | None,
    device: str,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Measures collectives among all ranks of the job. Start it with: hvdrun -np N python -m hvdlite.bench"""
    _refuse_ignored(context, device)
    labels = parse_peers(peers)
    if framework == "torch":
        labels = [] if trace_file is not None else peers_of_training(device)  # a trace shows hvdlite alone
    elif framework == "keras":
        require_keras("--train keras")
    kind = tensor_type(dtype, labels, device, "--train" if framework else "")
    require_gpu(labels, device == "cuda")
    if plane is not None:
        os.environ["HVDLITE_PLANE"] = plane
    with open_systems(labels, kind, registers, fuses) as systems:
        notes: list[str] = []
        if device == "cuda":
            notes = importlib.import_module("hvdlite.bench.measuring.on_gpu").use_own_gpu()
        if framework is not None:
            study = _training(framework, device, model, precision, trace_file, iterations or STEPS, warmup)
        elif shows_parts:
            study = importlib.import_module("hvdlite.bench.gpu.parts").parts(kind, sizes, iterations, warmup)
        elif step is not None:
            study = many(systems, kind, *step, iterations or STEPS, warmup)
        else:
            study = sweep(entrants(systems) | (LIMITS if shows_limit else {}), kind, op, sizes, iterations, warmup)
        run_study(study, notes, json_file, markdown_file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark and returns the exit code."""
    return run_command(bench, "hvdlite.bench", arguments)


def run_command(command: click.Command, module: str, arguments: Sequence[str] | None) -> int:
    """Runs ``command`` of ``module``. The exit code is 2 for wrong arguments, 1 for results or peers that failed."""

    def fail(message: str, code: int) -> int:
        print(f"{module}: {' '.join(message.split())}", file=sys.stderr)
        return code

    try:
        rank = Start.read().rank
        command.main(arguments, f"python -m {module}", standalone_mode=False)
    except click.Abort:
        return 130
    except click.ClickException as error:  # raised before anything is measured, and the same on all ranks
        return fail(f"{error.format_message()} See 'python -m {module} --help'.", 2) if rank == 0 else 0
    except ValueError as error:  # a setting
        return fail(str(error), 2)
    except (HvdError, OSError, MemoryError) as error:
        return fail(str(error), 1)
    return 0


def _refuse_ignored(context: click.Context, device: str) -> None:
    """Raises UsageError for two modes, and for options that the chosen mode or ``device`` would ignore."""
    given = {
        parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is not ParameterSource.DEFAULT
    }
    modes = sorted(given & _IGNORED.keys())
    if len(modes) > 1:
        raise click.UsageError(f"{' and '.join(modes)} exclude each other; give one of them.")
    for mode in modes:
        if ignored := given & _IGNORED[mode]:
            raise click.UsageError(f"{min(ignored)} means nothing with {mode}; leave it out.")
    for option in sorted(given & _ON_GPUS.keys()):
        mode = _ON_GPUS[option]
        if device != "cuda" or (mode and mode not in given):
            raise click.UsageError(f"{option} needs {mode and f'{mode} on '}--device cuda.")


def _training(
    framework: str, device: str, model: str, precision: str, trace_file: Path | None, steps: int, warmup: int
) -> Study:
    module = importlib.import_module(f"hvdlite.bench.training.with_{framework}")
    if framework != "torch" or device != "cuda":
        study: Study = module.train(steps, warmup)
    elif trace_file is None:
        study = module.train_on_gpus(model, precision, steps, warmup)
    else:
        study = importlib.import_module("hvdlite.bench.gpu.trace").trace(model, precision, steps, warmup, trace_file)
    return study


def run_study(study: Study, notes: Sequence[str], json_file: Path | None, markdown_file: Path | None) -> None:
    """Runs the study; rank 0 prints figures as they come, and writes the files at the end."""
    groups: list[Group] = []
    is_speaker = hvd.rank() == 0
    if is_speaker:
        print(f"# hvdlite {hvd.__version__}, {hvd.size()} ranks, data plane {current().plane_name}: {study.headline}")
        print(*(f"# {note}\n" for note in notes), sep="", end="")
        print(heading(study.columns), flush=True)
    for group in study.groups:
        groups.append(group)
        if is_speaker:
            print(*lines(group, study.columns), sep="\n", flush=True)
    if json_file is not None and is_speaker:
        write(json_file, to_json(row for group in groups for row in group.values()).encode())
    if markdown_file is not None and is_speaker:
        write(markdown_file, to_markdown(study, notes, groups).encode())
