"""The nodes of a Slurm job as hosts, where hvdrun was started once in it.

A batch script starts it, a user in the shell of salloc, or srun as a step of one task.

A node takes as many ranks as the job has tasks there. If the job was not asked for tasks, or this is a step, whose
variables replace those of the job, it takes as many as it has cores for, with ``--cpus-per-task`` cores each. Where
GPUs decide how many ranks there are, it is left to them.

A step that asks for no GPUs gets those that the job has on its node, if the job was asked for GPUs by node. If it was
asked for them by task or in total, Slurm gives an agent the GPUs of one task, or wants to give it those of all nodes.
So an agent asks for as many as scontrol says that its node has.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from hvdlite.errors import BadHostSpec
from hvdlite.launched_by.slurm import is_in_step, tasks_of_nodes
from hvdlite.launched_by.variables import number

from .hosts import Host, parse_hosts

SLURM: Final = "Slurm"
_NAMES: Final = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
_ELSEWHERE: Final = "name hosts yourself with -H"
_GPUS_NOT_BY_NODE: Final = ("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET", "SLURM_TRES_PER_TASK")
_SHOWN_NODES: Final = re.compile(r"^\s*Nodes=(\S+) .*\bGRES=(\S*)", re.MULTILINE)
_SHOWN_GPUS: Final = re.compile(r"(?:^|,)gpu(?::[^:,()]*)?:(\d+)")  # gpu:2(IDX:0-1) or gpu:h200:2(IDX:0,3)
_ANSWER_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a job of Slurm has: its nodes by name, and on each its tasks, or its cores if it was not asked for tasks.

    ``cores_per_task`` is what a rank is meant to have. If it ``is_here`` there is no srun, and only this machine.
    ``node_here`` is the node that this process runs on; empty on a login node. ``gpus`` are how many an agent has to
    ask for, by node.
    """

    job: str
    nodes: tuple[str, ...]
    tasks: tuple[int, ...]
    cores: tuple[int, ...]
    cores_per_task: int = 1
    is_here: bool = False
    node_here: str = ""
    gpus: Mapping[str, int] = field(default_factory=dict)

    def hosts(self, size: int | None = None, *, by_gpus: bool = False) -> tuple[Host, ...]:
        """The nodes with their slots; without tasks they have none if the number of ranks is found ``by_gpus``.

        Raises BadHostSpec if ``size`` ranks do not fit.
        """
        slots: list[int | None] = [max(1, cores // self.cores_per_task) for cores in self.cores]
        if self.tasks:
            slots = list(self.tasks)
        elif by_gpus:
            slots = [None] * len(self.nodes)
        counts = [count for count in slots if count is not None]
        if size is not None and len(counts) == len(self.nodes) and size > sum(counts):
            raise BadHostSpec(self._too_few(counts, size))
        if self.is_here:
            return (Host("localhost", slots[0]),)
        return tuple(
            Host(name, count, scheduler=SLURM, job=self.job, gpus=self.gpus.get(name, 0))
            for name, count in zip(self.nodes, slots, strict=True)
        )

    def _too_few(self, slots: Sequence[int], size: int) -> str:
        listed = ",".join(f"{name}:{count}" for name, count in zip(self.nodes, slots, strict=True))
        cores = "core" if self.cores_per_task == 1 else f"{self.cores_per_task} cores"
        what = "task of this job of Slurm" if self.tasks else f"{cores} that this job of Slurm has there"
        options = [f"--nodes={len(self.nodes)}", f"--ntasks-per-node={-(-size // len(self.nodes))}"]
        if self.cores_per_task > 1:
            options.append(f"--cpus-per-task={max(1, self.cores_per_task * sum(slots) // size)}")
        # What else is named with -H is reached by ssh, and localhost is a login node in the shell of salloc.
        is_alone = self.nodes == (self.node_here,)
        anyway = f", or start them on this node anyway with -H localhost:{size}" if is_alone else ""
        return (
            f"{size} ranks do not fit into the {sum(slots)} slots of {listed}, one for each {what}; lower -np, or ask "
            f"Slurm for {size} tasks, with {' '.join(options)}{anyway}."
        )


def allocation_of(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation that hvdrun was started in, or None. Raises BadHostSpec if it cannot be used."""
    if environ.get("SLURM_HET_SIZE", "0") != "0":
        raise BadHostSpec(
            f"this is a heterogeneous job of Slurm (SLURM_HET_SIZE={environ['SLURM_HET_SIZE']}), whose parts hvdrun "
            f"does not join; ask Slurm for one kind of node, or {_ELSEWHERE}."
        )
    names = next((environ[name] for name in _NAMES if environ.get(name)), "")
    if "SLURM_JOB_ID" not in environ or not names:
        return None
    is_step = is_in_step(environ)
    if is_step and (count := number(environ, "SLURM_STEP_NUM_TASKS")) > 1:
        raise BadHostSpec(
            f"srun has started hvdrun {count} times (SLURM_STEP_NUM_TASKS={count}), and each would start a job of its "
            "own; start hvdrun once, without srun or with -n 1, or leave hvdrun out: srun starts ranks too."
        )
    nodes = tuple(host.name for host in parse_hosts(names, "the nodes that Slurm lists"))
    has_tasks = not is_step and ("SLURM_NTASKS" in environ or "SLURM_NTASKS_PER_NODE" in environ)
    tasks = _of_nodes(environ, "SLURM_TASKS_PER_NODE", nodes) if has_tasks else ()
    cores = _of_nodes(environ, "SLURM_JOB_CPUS_PER_NODE", nodes) if not has_tasks else ()
    is_here = shutil.which("srun", path=environ.get("PATH")) is None
    if is_here and nodes != (environ.get("SLURMD_NODENAME"),):
        raise BadHostSpec(
            f"agents on {', '.join(nodes)} are started by srun, which is not on PATH; is this a container? Put srun "
            f"on PATH, or {_ELSEWHERE}."
        )
    per_task = number(environ, "SLURM_CPUS_PER_TASK") if environ.get("SLURM_CPUS_PER_TASK") else 1
    here = environ.get("SLURMD_NODENAME", "")
    gpus = _gpus_of_nodes(environ) if any(environ.get(name) for name in _GPUS_NOT_BY_NODE) and not is_here else {}
    return Allocation(environ["SLURM_JOB_ID"], nodes, tasks, cores, max(1, per_task), is_here, here, gpus)


def _of_nodes(environ: Mapping[str, str], name: str, nodes: tuple[str, ...]) -> tuple[int, ...]:
    """The number of each node in the variable ``name``: 2, 2, 1 of ``2(x2),1``."""
    found = tuple(tasks_of_nodes(environ.get(name, "")))
    if len(found) != len(nodes) or 0 in found:
        raise BadHostSpec(
            f"{name}={environ.get(name, '')!r} has no number for each of the {len(nodes)} nodes of this job, "
            f"{','.join(nodes)}; set it as Slurm does, or {_ELSEWHERE}."
        )
    return found


def _gpus_of_nodes(environ: Mapping[str, str]) -> dict[str, int]:
    """How many GPUs the job has on each of its nodes, as scontrol shows them; empty if it does not."""
    job = environ["SLURM_JOB_ID"]
    if "SLURM_ARRAY_TASK_ID" in environ:  # the number of one of its tasks is also that of the array
        job = f"{environ.get('SLURM_ARRAY_JOB_ID', job)}_{environ['SLURM_ARRAY_TASK_ID']}"
    scontrol = shutil.which("scontrol", path=environ.get("PATH")) or "scontrol"
    gpus: dict[str, int] = {}
    with suppress(OSError, subprocess.TimeoutExpired, BadHostSpec):
        asked = subprocess.run(
            [scontrol, "show", "job", "--details", job], env=environ, capture_output=True, text=True, timeout=_ANSWER_S
        )
        for names, shown in _SHOWN_NODES.findall(asked.stdout):
            count = sum(map(int, _SHOWN_GPUS.findall(shown)))
            gpus |= {host.name: count for host in parse_hosts(names, "the nodes that scontrol shows")}
    return gpus
