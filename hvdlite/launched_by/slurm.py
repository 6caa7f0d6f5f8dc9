"""Reads the variables that Slurm sets for the tasks of a step.

A batch script, the shell of salloc and its interactive step have most of these variables too, but are not ranks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from hvdlite.launched_by.variables import Environ, number

_OF_THE_JOB: Final = re.compile(
    r"SLURM_(?:JOB_.*|JOBID|ARRAY_.*|CLUSTER_NAME|WORKING_CLUSTER|CONF.*|NODELIST|SUBMIT_.*|RESTART_COUNT|HET_SIZE)"
)
_FIRST_SPECIAL_STEP: Final = 0xFFFFFFF0  # batch scripts and interactive shells are steps of such numbers


def is_in_step(environ: Environ) -> bool:
    """True if srun has started this process as a task, and not as the user's shell."""
    return "SLURM_STEP_ID" in environ and number(environ, "SLURM_STEP_ID") < _FIRST_SPECIAL_STEP


def job(environ: Environ) -> str:
    """The name of the step, with the restart count, because a requeued job has the same numbers."""
    return f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}.{environ.get('SLURM_RESTART_COUNT', '0')}"


def local_size(environ: Environ) -> int:
    """The number of tasks of the step on this node."""
    if number(environ, "SLURM_STEP_NUM_NODES") == 1:
        return number(environ, "SLURM_STEP_NUM_TASKS")
    tasks, node = tasks_of_nodes(environ.get("SLURM_STEP_TASKS_PER_NODE", "")), number(environ, "SLURM_NODEID")
    return tasks[node] if node < len(tasks) else 1


def host_of_rank_0(environ: Environ) -> str:
    """The node of the first task, unless a file or option distributes the tasks in another order."""
    return first_host(environ.get("SLURM_STEP_NODELIST", ""))


def first_host(nodelist: str) -> str:
    """The first host of a node list: n01-ib of ``n[01-04,07]-ib,m1``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0]) if first else ""


def tasks_of_nodes(text: str) -> list[int]:
    """The tasks of every node of a step: 2, 2, 1 of ``2(x2),1``."""
    parts = re.findall(r"([0-9]+)(?:\(x([0-9]+)\))?", text)
    return [int(tasks) for tasks, times in parts for _ in range(int(times or 1))]


def not_of_the_job(environ: Environ) -> list[str]:
    """The variables of Slurm that describe a step, a task or the form of the request, and not the job as a whole.

    A rank of hvdrun with them would look like the only task of a step, and srun would take them as options.
    """
    return sorted(name for name in environ if name.startswith(("SLURM_", "SRUN_")) and not _OF_THE_JOB.fullmatch(name))


def without_step(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` for a rank of hvdrun: without `not_of_the_job`, but with the cores of a task and of a node."""
    left_out = set(not_of_the_job(environ)) - {"SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"}
    return {name: value for name, value in environ.items() if name not in left_out}
