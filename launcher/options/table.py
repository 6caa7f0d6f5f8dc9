"""Horovod's flags in one table: what each does, or why it has no effect or is refused.

Those that are also options of hvdrun, such as ``-np`` and ``--hostfile``, are in `cli`. `docs/hvdrun.md` prints
this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import click

from .flags import SETTINGS, Always, Flag, Given, NoEffect, Refused, Sets

_AUTOTUNE: Final = (
    "nothing is tuned while a job runs, and no file is written about it; "
    "--fusion-threshold-mb and --cycle-time-ms set what Horovod would tune"
)
_PLANE: Final = "the data plane follows from where the ranks run; HVDLITE_PLANE overrides it"
_ELASTIC: Final = "a job keeps its ranks from start to end; leave it out, and give -np, and -H or --hostfile"
_MPI: Final = "hvdrun starts the ranks itself, without MPI; leave it out"
_NO_MPI: Final = "there is no MPI"
_STREAMS: Final = "NCCL gets one stream for each group of ranks; those of process sets run beside each other"

FLAGS: Final[tuple[Flag, ...]] = (
    Sets("--start-timeout", "S", setting="start_timeout"),
    # Negotiation and messages.
    Sets("--fusion-threshold-mb", "MB", "params.fusion_threshold_mb", setting="fusion_threshold", scale=1 << 20),
    Sets("--cycle-time-ms", "MS", "params.cycle_time_ms", setting="cycle_time"),
    Sets("--cache-capacity", "N", "params.cache_capacity", setting="cache_capacity"),
    Sets(
        "--stall-check/--no-stall-check",
        key="stall_check.enabled",
        note="warn when some ranks do not submit a tensor",
        setting="stall_check_disable",
        is_negated=True,
    ),
    Sets(
        "--stall-check-warning-time-seconds",
        "S",
        "stall_check.warning_time_seconds",
        setting="stall_check_time_seconds",
    ),
    Sets(
        "--stall-check-shutdown-time-seconds",
        "S",
        "stall_check.shutdown_time_seconds",
        setting="stall_shutdown_time_seconds",
    ),
    Sets("--gloo-timeout-seconds", "S", "library_options.gloo_timeout_seconds", setting="progress_timeout"),
    Sets("--log-level", "LEVEL", "logging.level", setting="log_level"),
    Sets(
        "--log-with-timestamp/--log-without-timestamp",
        key="logging.with_timestamp",
        note="time stamps in messages of the library",
        setting="log_hide_time",
        is_negated=True,
    ),
    Sets(
        "--log-hide-timestamp/--no-log-hide-timestamp",
        key="logging.hide_timestamp",
        note="the same in Horovod's older words",
        setting="log_hide_time",
    ),
    Sets("--timeline-filename", "FILE", "timeline.filename", setting="timeline"),
    Sets(
        "--timeline-mark-cycles/--no-timeline-mark-cycles",
        key="timeline.mark_cycles",
        note="mark the begin of each cycle in the timeline",
        setting="timeline_mark_cycles",
    ),
    # What is so without them.
    Always("--gloo", note="it means collectives on CPUs without MPI"),
    Always("--tcp", note="hosts are joined by TCP"),
    Always("--disable-cache", note="nothing about hosts is cached for later jobs"),
    # What changes nothing.
    NoEffect("--hierarchical-allreduce/--no-hierarchical-allreduce", key="params.hierarchical_allreduce", note=_PLANE),
    NoEffect("--hierarchical-allgather/--no-hierarchical-allgather", key="params.hierarchical_allgather", note=_PLANE),
    NoEffect("--torus-allreduce/--no-torus-allreduce", key="params.torus_allreduce", note=_PLANE),
    NoEffect("--autotune/--no-autotune", key="autotune.enabled", note=_AUTOTUNE),
    NoEffect("--autotune-log-file", "FILE", "autotune.log_file", note=_AUTOTUNE),
    NoEffect("--autotune-warmup-samples", "N", "autotune.warmup_samples", note=_AUTOTUNE),
    NoEffect("--autotune-steps-per-sample", "N", "autotune.steps_per_sample", note=_AUTOTUNE),
    NoEffect("--autotune-bayes-opt-max-samples", "N", "autotune.bayes_opt_max_samples", note=_AUTOTUNE),
    NoEffect("--autotune-gaussian-process-noise", "F", "autotune.gaussian_process_noise", note=_AUTOTUNE),
    NoEffect("--mpi-threads-disable/--no-mpi-threads-disable", key="library_options.mpi_threads_disable", note=_NO_MPI),
    NoEffect("--num-nccl-streams", "N", "library_options.num_nccl_streams", note=_STREAMS),
    NoEffect(
        "--thread-affinity",
        "CORE",
        "library_options.thread_affinity",
        note="the system places the threads of the library; taskset in the command binds a whole rank",
    ),
    # What would be something else than was asked for.
    Refused("--min-np --min-num-proc", "N", note=_ELASTIC),
    Refused("--max-np --max-num-proc", "N", note=_ELASTIC),
    Refused("--slots-per-host --slots", "N", note=_ELASTIC),
    Refused("--elastic-timeout", "S", note=_ELASTIC),
    Refused("--reset-limit", "N", note=_ELASTIC),
    Refused("--blacklist-cooldown-range", "MIN MAX", note=_ELASTIC),
    Refused("--host-discovery-script", "FILE", note=_ELASTIC),
    Refused("--mpi", note=_MPI),
    Refused("--mpi-args", "ARGS", note=_MPI),
    Refused("--jsrun", note=_MPI),
    Refused("--binding-args", "ARGS", note=_MPI),
)

_BY_PARAMETER: Final[Mapping[str, Flag]] = {flag.names[0].strip("-").replace("-", "_"): flag for flag in FLAGS}
_Function = TypeVar("_Function", bound=Callable[..., Any])


def horovod_options(function: _Function) -> _Function:
    """Adds all flags of the table to a command as options; values are passed as keywords, None if not given."""
    for name, flag in reversed(list(_BY_PARAMETER.items())):
        function = _option(name, flag)(function)
    return function


def _option(name: str, flag: Flag) -> Callable[[_Function], _Function]:
    spellings = (flag.spelling,) if flag.opposite else flag.names
    text = describe(flag)
    form: dict[str, Any] = dict(default=None, help=f"{text[0].upper()}{text[1:]}.", hidden=not isinstance(flag, Sets))
    if flag.is_switch:
        return click.option(*spellings, name, is_flag=True, **form)
    return click.option(*spellings, name, metavar=flag.metavar, nargs=len(flag.metavar.split()), **form)


def typed_flags(values: Mapping[str, Any]) -> Iterator[Given]:
    """The flags that the user gave, from ``values``, the keywords of `horovod_options`."""
    for name, value in values.items():
        flag = _BY_PARAMETER[name]
        if isinstance(value, bool):
            label = flag.opposite if not value else " / ".join(flag.names)
            yield Given(flag, label, str(int(value)))
        elif value is not None:
            yield Given(flag, " / ".join(flag.names), value if isinstance(value, str) else " ".join(value))


def describe(flag: Flag) -> str:
    """The flag's effect, or why it has none, as a sentence without capital and full stop."""
    if flag.note or not isinstance(flag, Sets):
        return flag.note
    spec = SETTINGS[flag.setting]
    return f"{spec.meaning}: {', '.join(spec.choices)}" if spec.choices else spec.meaning
