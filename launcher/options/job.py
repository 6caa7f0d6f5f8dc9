"""Command-line options for the number of ranks, their environment and their output."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

import click

from ..decisions.plan import Size
from ..decisions.supervisor import GRACE_S
from ..nodes.place import Slots
from .gather import gathered
from .values import PathName, Seconds


class JobOptions(NamedTuple):
    """``variables`` are not checked yet. What may be None is None if it was not given."""

    size: Size
    per_host: int | None
    gpus_per_rank: int | None
    syncs: bool
    encrypts: bool
    variables: tuple[str, ...]
    config_file: str | None
    reader: str
    grace_s: float
    lends_horovod: bool | None

    @property
    def is_counted(self) -> bool:
        """True if the options say how many ranks there are."""
        return any(option is not None for option in (self.size, self.per_host, self.gpus_per_rank))

    def with_slots(self, slots: Slots) -> JobOptions:
        """The same, with the environment's number of ranks for each host, unless the user has given one."""
        if slots == "auto":
            return self if self.is_counted else self._replace(size="auto")
        is_given = self.per_host is not None or self.gpus_per_rank is not None or self.size == "auto"
        return self if is_given else self._replace(per_host=slots)

    @property
    def named(self) -> frozenset[str]:
        """The variables that -x names."""
        return frozenset(text.partition("=")[0] for text in self.variables)

    def check_gpus(self) -> None:
        """Raises UsageError if ranks would see other GPUs, for -x, than those that they are counted or chosen by."""
        if "CUDA_VISIBLE_DEVICES" not in self.named:
            return
        if self.gpus_per_rank is not None:
            raise click.UsageError("--gpus-per-proc sets CUDA_VISIBLE_DEVICES of each rank; leave out -x.")
        if self.size == "auto":
            raise click.UsageError(
                "-np auto counts the GPUs that each host has without -x CUDA_VISIBLE_DEVICES; leave that out, or give "
                "a number."
            )

    def readers(self, size: int) -> Collection[int]:
        """The ranks, of ``size``, that read hvdrun's stdin. Raises UsageError for one that does not exist."""
        if not self.reader.isdigit():
            return range(size if self.reader == "all" else 0)
        if int(self.reader) >= size:
            raise click.UsageError(
                f"--stdin {self.reader}: there is no such rank; the job has {size}, numbered from 0."
            )
        return (int(self.reader),)


class OutputOptions(NamedTuple):
    """``folder`` is None if no files are wanted."""

    folder: str | None
    has_timestamps: bool
    is_verbose: bool
    is_quiet: bool


def _count(text: str, example: str = "-ppn 4") -> int:
    digits = text.removeprefix("p")  # click reads -np4 as -n with the value p4
    if re.match(r"p[a-z_]", text):
        raise click.BadParameter(f"-n{text.partition('=')[0]} is no option; the number of processes is -np N.")
    if not re.fullmatch(r"-?\d+", digits):
        raise click.BadParameter(f"{text!r} is not a number of processes, as in {example}.")
    if int(digits) < 1:
        raise click.BadParameter(f"{digits} is not a number of processes; it must be at least 1.")
    return int(digits)


def _size(text: str) -> Size:
    return "auto" if text.removeprefix("p") == "auto" else _count(text, "-np 4 or -np auto")


def _reader(text: str) -> str:
    if text not in ("all", "none") and not re.fullmatch(r"\d{1,9}", text):
        raise click.BadParameter(f"{text!r} is not a rank, 'all' or 'none'.")
    return text


_OF_JOB: Final = (
    click.option("-np", "-n", "--num-proc", "size", type=_size, metavar="N|auto",
                 help="How many processes to start; auto: one for each GPU, or each core."),
    click.option("-ppn", "-npernode", "--npernode", "per_host", type=_count, metavar="N",
                 help="At most N on each host."),
    click.option("--gpus-per-proc", "gpus_per_rank", type=click.IntRange(1), metavar="N",
                 help="Give each process N GPUs of its host, and hide the others from it."),
    click.option("--sync", "syncs", is_flag=True, help="Copy the working directory to hosts that do not share it."),
    click.option("--encrypt-data", "encrypts", is_flag=True, help="Also encrypt tensors that cross a network."),
    click.option("-x", "variables", multiple=True, metavar="NAME[=VALUE]",
                 help="Pass on or set an environment variable."),
    click.option("--config-file", "config_file", type=PathName(), metavar="FILE",
                 help="Read flags from a YAML file, as Horovod does."),
    click.option("--stdin", "reader", type=_reader, default="0", metavar="RANK|all|none",
                 help="The rank that reads hvdrun's stdin; rank 0 by default."),
    click.option("--grace", "grace_s", type=Seconds(0, 86400), default=GRACE_S, show_default=True,
                 metavar="SECONDS", help="How long ranks have between SIGTERM and SIGKILL."),
    click.option("--horovod-compat/--no-horovod-compat", "lends_horovod", default=None,
                 help="Make 'import horovod' mean hvdlite always, or never; else where no Horovod is installed."),
)  # fmt: skip

_OF_OUTPUT: Final = (
    click.option("--output-filename", "folder", type=PathName(), metavar="DIR",
                 help="Also write DIR/rank.N/stdout, stderr and blackbox."),
    click.option("-prefix-timestamp", "--prefix-output-with-timestamp", "has_timestamps", is_flag=True,
                 help="Put the time before every line."),
    click.option("--verbose", "is_verbose", is_flag=True, help="Say what hvdrun does."),
    click.option("--quiet", "is_quiet", is_flag=True, help="Leave out the last line, about where the time went."),
)  # fmt: skip

job_options: Final = gathered("job", JobOptions, _OF_JOB)
output_options: Final = gathered("output", OutputOptions, _OF_OUTPUT)
