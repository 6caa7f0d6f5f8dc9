"""The variables that each engine sets for the processes that it starts: a row for each engine, in order of precedence.

The order is that of nesting, from the inside out. Inside a Slurm allocation mpirun passes Slurm's variables on, and one
torchrun per node is often started by mpirun or srun; the inner one knows the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hvdlite.host.ancestor import started_without
from hvdlite.launched_by import slurm
from hvdlite.launched_by.variables import Environ, number


@dataclass(frozen=True, slots=True)
class Engine:
    """A row. The engine started this process if ``rank``, ``size`` and all ``marks`` are set, and ``if_also`` holds.

    ``rank``, ``size`` and ``local_rank`` name variables. ``local_size`` is the number of ranks on this host. ``job``,
    which also gets the id of the process or 0 for this one, identifies the job and is the same on all ranks; it and
    ``host_of_rank_0`` are empty if the engine does not set them. ``pass_on`` is how to pass a variable to all ranks.
    """

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: Callable[[Environ], int]
    job: Callable[[Environ, int], str]
    host_of_rank_0: Callable[[Environ], str]
    pass_on: str
    marks: tuple[str, ...] = ()
    if_also: Callable[[Environ], bool] = lambda environ: True

    @property
    def mark(self) -> str:
        """A variable that this engine's ranks have, and the engine itself does not."""
        return next(iter(self.marks), self.rank)

    def started(self, environ: Environ) -> bool:
        """True if the process with this environment is a rank of this engine."""
        return not self.lacking(environ) and self.if_also(environ)

    def lacking(self, environ: Environ) -> list[str]:
        """The variables of this engine's ranks that are missing in this environment."""
        return [name for name in (self.rank, self.size, *self.marks) if name not in environ]


def _horovodrun_job(environ: Environ, pid: int) -> str:
    host, port = (environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{name}", "") for name in ("ADDR", "PORT"))
    return f"{host}:{port}" if port else ""


def _torchrun_job(environ: Environ, pid: int) -> str:
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


def _hydra_job(environ: Environ, pid: int) -> str:
    # Hydra does not name its jobs. On one host its proxy, which starts the ranks there, distinguishes them.
    is_one_host = environ["MPI_LOCALNRANKS"] == environ["PMI_SIZE"]
    return str(started_without("PMI_RANK", pid)) if is_one_host else ""


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
        job=lambda environ, pid: environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", ""),
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
        if_also=slurm.is_in_step,
        local_rank="SLURM_LOCALID",
        local_size=slurm.local_size,
        job=lambda environ, pid: slurm.job(environ),
        host_of_rank_0=slurm.host_of_rank_0,
        pass_on="export {0}, then start srun",
    ),
    Engine(
        name="torch.distributed",  # its variables, set by DeepSpeed's launcher, by Kubeflow, or by hand
        rank="RANK",
        size="WORLD_SIZE",
        marks=("MASTER_ADDR", "MASTER_PORT"),
        local_rank="LOCAL_RANK",
        local_size=_torch_local_size,
        job=lambda environ, pid: _master(environ),
        host_of_rank_0=lambda environ: environ["MASTER_ADDR"],
        pass_on="give every rank {0}",
    ),
)
