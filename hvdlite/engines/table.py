"""What each engine tells the processes that it starts: one row an engine, the one that wins first.

The order is that of nesting, from the inside out. Inside a Slurm allocation mpirun passes Slurm's variables on, and one
torchrun per node is often started by mpirun or srun; the inner one knows the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from hvdlite.engines.ancestor import started_without

Environ = Mapping[str, str]

_FIRST_SPECIAL_STEP: Final = 0xFFFFFFF0  # Slurm's batch scripts and interactive shells are steps of such numbers


@dataclass(frozen=True, slots=True)
class Engine:
    """One row. An engine has started this process if ``rank``, ``size`` and all of ``marks`` are set, and ``if_also``.

    ``rank``, ``size`` and ``local_rank`` name variables. ``local_size`` is the number of ranks on this host. ``job``
    tells the job from all others, the same on all ranks. It and ``host_of_rank_0`` are empty if the engine does not
    tell them.
    ``pass_on`` says how all ranks get a variable.
    """

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: Callable[[Environ], int]
    job: Callable[[Environ], str]
    host_of_rank_0: Callable[[Environ], str]
    pass_on: str
    marks: tuple[str, ...] = ()
    if_also: Callable[[Environ], bool] = lambda environ: True

    def started(self, environ: Environ) -> bool:
        """Whether the process with this environment is a rank of this engine."""
        return not self.lacking(environ) and self.if_also(environ)

    def lacking(self, environ: Environ) -> list[str]:
        """The variables that a rank of this engine has, and this environment has not."""
        return [name for name in (self.rank, self.size, *self.marks) if name not in environ]


def number(environ: Environ, name: str) -> int:
    """The whole number in the variable ``name``. Raises ValueError that names it."""
    text = environ.get(name, "")
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise ValueError(f"{name}={text!r} must be a whole number; whatever started this process has set it")
    return int(text)


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list: n01-ib of ``n[01-04,07]-ib,m1``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0]) if first else ""


def tasks_of_nodes(text: str) -> list[int]:
    """The tasks of every node of a Slurm step: 2, 2, 1 of ``2(x2),1``."""
    parts = re.findall(r"([0-9]+)(?:\(x([0-9]+)\))?", text)
    return [int(tasks) for tasks, times in parts for _ in range(int(times or 1))]


def _horovodrun_job(environ: Environ) -> str:
    host, port = (environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{name}", "") for name in ("ADDR", "PORT"))
    return f"{host}:{port}" if port else ""


def _torchrun_job(environ: Environ) -> str:
    # An agent counts the restarts that it ordered itself, so the counts of several agents differ.
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT") if _is_one_agent(environ) else None
    return " ".join([environ["TORCHELASTIC_RUN_ID"], _master(environ), *([attempt] if attempt else [])])


def _is_one_agent(environ: Environ) -> bool:
    return environ.get("LOCAL_WORLD_SIZE") == environ["WORLD_SIZE"]


def _master(environ: Environ) -> str:
    return f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"


def _torch_local_size(environ: Environ) -> int:
    if environ["MASTER_ADDR"] == "localhost" or environ["MASTER_ADDR"].startswith("127."):
        return number(environ, "WORLD_SIZE")
    return number(environ, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environ else 1


def _head_of_open_mpi(environ: Environ) -> str:
    uri = re.search(r"tcp://([0-9.]+)", environ.get("OMPI_MCA_orte_hnp_uri", ""))
    return uri[1] if uri else ""


def _hydra_job(environ: Environ) -> str:
    # Hydra does not name its jobs. On one host its proxy, which starts the ranks there, tells them apart.
    is_one_host = environ["MPI_LOCALNRANKS"] == environ["PMI_SIZE"]
    return str(started_without("PMI_RANK")) if is_one_host else ""


def _slurm_job(environ: Environ) -> str:
    requeued = environ.get("SLURM_RESTART_COUNT", "0")
    return f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}.{requeued}"


def _slurm_local_size(environ: Environ) -> int:
    if number(environ, "SLURM_STEP_NUM_NODES") == 1:
        return number(environ, "SLURM_STEP_NUM_TASKS")
    tasks = tasks_of_nodes(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = number(environ, "SLURM_NODEID")
    return tasks[node] if node < len(tasks) else 1


def _is_in_slurm_step(environ: Environ) -> bool:
    return number(environ, "SLURM_STEP_ID") < _FIRST_SPECIAL_STEP


ENGINES: Final = (
    Engine(
        name="horovodrun",
        rank="HOROVOD_RANK",
        size="HOROVOD_SIZE",
        local_rank="HOROVOD_LOCAL_RANK",
        local_size=lambda environ: number(environ, "HOROVOD_LOCAL_SIZE") if "HOROVOD_LOCAL_SIZE" in environ else 1,
        job=_horovodrun_job,
        host_of_rank_0=lambda environ: "",
        pass_on="export {0}, then start horovodrun",
    ),
    Engine(
        name="torchrun",
        rank="RANK",
        size="WORLD_SIZE",
        marks=("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
        local_rank="LOCAL_RANK",
        local_size=lambda environ: number(environ, "LOCAL_WORLD_SIZE"),
        job=_torchrun_job,
        host_of_rank_0=lambda environ: environ["MASTER_ADDR"],
        pass_on="export {0} on every node, then start torchrun there",
    ),
    Engine(
        name="Open MPI",
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size=lambda environ: number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        job=lambda environ: environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", ""),
        host_of_rank_0=_head_of_open_mpi,
        pass_on="export {0}, then start mpirun -x {0}",
    ),
    Engine(
        name="MPICH",  # and Intel MPI: both start ranks with Hydra
        rank="PMI_RANK",
        size="PMI_SIZE",
        marks=("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        local_rank="MPI_LOCALRANKID",
        local_size=lambda environ: number(environ, "MPI_LOCALNRANKS"),
        job=_hydra_job,
        host_of_rank_0=lambda environ: "",
        pass_on="export {0}, then start mpiexec",
    ),
    Engine(
        name="Slurm",
        rank="SLURM_PROCID",
        size="SLURM_STEP_NUM_TASKS",
        marks=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_NODES"),
        if_also=_is_in_slurm_step,
        local_rank="SLURM_LOCALID",
        local_size=_slurm_local_size,
        job=_slurm_job,
        host_of_rank_0=lambda environ: first_host(environ.get("SLURM_STEP_NODELIST", "")),
        pass_on="export {0}, then start srun",
    ),
    Engine(
        name="torch.distributed",  # its variables, set by DeepSpeed's launcher, by Kubeflow, or by hand
        rank="RANK",
        size="WORLD_SIZE",
        marks=("MASTER_ADDR", "MASTER_PORT"),
        local_rank="LOCAL_RANK",
        local_size=_torch_local_size,
        job=_master,
        host_of_rank_0=lambda environ: environ["MASTER_ADDR"],
        pass_on="give every rank {0}",
    ),
)
