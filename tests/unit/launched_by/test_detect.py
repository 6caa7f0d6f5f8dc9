"""The identity of a process by the environment of an engine: recorded ones, mixtures, and undecidable ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from hvdlite.launched_by.detect import doubt
from hvdlite.settings import Start
from tests.harness.patience import PATIENCE_S
from tests.unit import engine_environments as recorded

KEY = "ab" * 32
SLURM_OUTSIDE_OF_STEPS = (
    recorded.SLURM_BATCH_SCRIPT,
    recorded.SLURM_INTERACTIVE_SHELL,
    recorded.SLURM_SHELL_OF_SALLOC,
)


def places(environ: Mapping[str, str]) -> tuple[int, int, int, int]:
    start = Start.read(environ)
    return start.rank, start.size, start.local_rank, start.local_size


@pytest.mark.parametrize(
    ("environ", "expected", "job"),
    [
        (recorded.TORCHRUN, (1, 2, 1, 2), "torchrun 52931cd8-c1eb-4fe8-8a4a-fda323fe5d6a localhost:39445 0"),
        (recorded.OPEN_MPI_4, (1, 2, 1, 2), "Open MPI 711131137"),
        (recorded.OPEN_MPI_5, (0, 2, 0, 2), "Open MPI prterun-vm-18436@1"),
        (recorded.SLURM_STEP, (1, 2, 1, 2), "Slurm 1.0.0"),
        (recorded.HOROVODRUN, (1, 2, 1, 2), "horovodrun 192.0.2.2:37123"),
    ],
    ids="torchrun openmpi4 openmpi5 slurm horovodrun".split(),
)
def test_an_engine_on_one_host(environ: Mapping[str, str], expected: tuple[int, ...], job: str) -> None:
    start = Start.read(environ)
    assert places(environ) == expected
    assert (start.job, start.coordinator) == (job, "")


@pytest.mark.parametrize(
    ("environ", "expected", "coordinator", "job"),
    [
        (recorded.TORCHRUN_ON_TWO_NODES, (2, 4, 0, 2), "node1", "torchrun none node1:39445"),
        (recorded.OPEN_MPI_4 | {"OMPI_COMM_WORLD_SIZE": "4"}, (1, 4, 1, 2), "192.0.2.2", "Open MPI 711131137"),
        (recorded.SLURM_STEP_ON_TWO_NODES, (2, 3, 0, 1), "n1", "Slurm 2.0.0"),
        (recorded.TORCH_DISTRIBUTED, (1, 2, 0, 1), "node1", "torch.distributed node1:29500"),
    ],
    ids="torchrun openmpi4 slurm torch".split(),
)
def test_an_engine_on_several_hosts(
    environ: Mapping[str, str], expected: tuple[int, ...], coordinator: str, job: str
) -> None:
    keyed = {**environ, "HVDLITE_SECRET": KEY}
    start = Start.read(keyed)
    assert places(keyed) == expected
    assert (start.job, start.coordinator) == (job, coordinator)
    assert Start.read({**keyed, "HVDLITE_COORDINATOR": "n9:5000"}).coordinator == "n9:5000"
    with pytest.raises(ValueError, match="several hosts, which need HVDLITE_SECRET"):
        Start.read(environ)


@pytest.mark.parametrize(
    ("environ", "advice"),
    [
        (recorded.OPEN_MPI_5 | {"OMPI_COMM_WORLD_SIZE": "4"}, "mpirun -x HVDLITE_COORDINATOR"),
        (recorded.HYDRA | {"PMI_SIZE": "4"}, "start mpiexec"),
        (recorded.HOROVODRUN | {"HOROVOD_SIZE": "4"}, "start horovodrun"),
    ],
    ids="openmpi5 mpich horovodrun".split(),
)
def test_the_host_of_rank_0_is_asked_for_where_the_engine_does_not_tell(
    environ: Mapping[str, str], advice: str
) -> None:
    with pytest.raises(ValueError, match=r"need HVDLITE_COORDINATOR, .* and HVDLITE_SECRET") as caught:
        Start.read(environ)
    assert advice in str(caught.value)
    assert Start.read({**environ, "HVDLITE_SECRET": KEY, "HVDLITE_COORDINATOR": "n1"}).coordinator == "n1"


def test_ranks_of_mpich_on_one_host_are_told_apart_by_what_started_them() -> None:
    program = "from hvdlite.settings import Start; print(Start.read().job)"
    nested = (
        "import os, subprocess, sys; print(os.getpid(), flush=True); subprocess.run([sys.executable, *sys.argv[1:]])"
    )
    script = ["-c", nested, "-c", program]
    environ = {**os.environ, **recorded.HYDRA}
    ended = subprocess.run([sys.executable, *script], env=environ, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.stdout.splitlines()[1:] == [f"MPICH {os.getpid()}"], ended.stderr


def test_jobs_and_attempts_have_different_names() -> None:
    restarted = recorded.TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"}
    requeued = recorded.SLURM_STEP | {"SLURM_RESTART_COUNT": "1"}
    second_step = recorded.SLURM_STEP | {"SLURM_STEP_ID": "1"}
    environments = [recorded.TORCHRUN, restarted, recorded.SLURM_STEP, requeued, second_step]
    assert len({Start.read(environ).job for environ in environments}) == len(environments)


@pytest.mark.parametrize(
    ("outer", "inner", "job"),
    [
        (recorded.SLURM_STEP_ON_TWO_NODES, recorded.OPEN_MPI_4, "Open MPI"),
        (recorded.SLURM_BATCH_SCRIPT, recorded.OPEN_MPI_5, "Open MPI"),
        (recorded.SLURM_STEP_ON_TWO_NODES, recorded.TORCHRUN, "torchrun"),
        (recorded.OPEN_MPI_4, recorded.TORCHRUN, "torchrun"),
        (recorded.TORCH_DISTRIBUTED, recorded.OPEN_MPI_4, "Open MPI"),
    ],
)
def test_the_inner_engine_wins(outer: Mapping[str, str], inner: Mapping[str, str], job: str) -> None:
    assert places({**outer, **inner}) == places(inner)
    assert Start.read({**outer, **inner}).job.startswith(job)


@pytest.mark.parametrize("name", [name for name in vars(recorded) if name.isupper()])
def test_hvdrun_wins_inside_everything(name: str) -> None:
    ours = {"HVDLITE_RANK": "5", "HVDLITE_SIZE": "7", "HVDLITE_LOCAL_RANK": "2", "HVDLITE_LOCAL_SIZE": "3"}
    environ = {**getattr(recorded, name), **ours}
    assert places(environ) == (5, 7, 2, 3)
    assert (Start.read(environ).job, Start.read(environ).coordinator) == ("", "")
    assert doubt(environ) == ""


@pytest.mark.parametrize("environ", SLURM_OUTSIDE_OF_STEPS, ids="batch interactive salloc".split())
def test_a_shell_of_slurm_is_a_job_of_one_and_says_so(environ: Mapping[str, str]) -> None:
    assert places(environ) == (0, 1, 0, 1)
    assert "allocation of 2 tasks" in doubt(environ)
    assert doubt(environ | {"SLURM_NTASKS": "1"}) == ""


def test_one_rank_of_an_engine_is_not_doubted() -> None:
    alone = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    assert doubt({**recorded.SLURM_BATCH_SCRIPT, **recorded.OPEN_MPI_4, **alone}) == ""
    assert doubt({}) == ""
    assert "PMIX_RANK" in doubt({"PMIX_RANK": "3"})


@pytest.mark.parametrize(
    ("environ", "lacking"),
    [
        ({"WORLD_SIZE": "4"}, "RANK and MASTER_ADDR and MASTER_PORT are missing"),
        ({"WORLD_SIZE": "4", "RANK": "0", "MASTER_ADDR": "n1"}, "MASTER_PORT is missing"),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "MPI_LOCALRANKID and MPI_LOCALNRANKS are missing"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK is missing"),
    ],
)
def test_one_of_several_that_cannot_tell_which_is_refused(environ: Mapping[str, str], lacking: str) -> None:
    with pytest.raises(ValueError, match=r"says that this process is one of several") as caught:
        Start.read(environ)
    assert lacking in str(caught.value)
    assert places({**environ, "HVDLITE_SIZE": "1"}) == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"OMPI_COMM_WORLD_RANK": "one"}, "OMPI_COMM_WORLD_RANK='one' must be a whole number"),
        ({"OMPI_COMM_WORLD_SIZE": "-2"}, "OMPI_COMM_WORLD_SIZE='-2' must be a whole number"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": ""}, "OMPI_COMM_WORLD_LOCAL_SIZE='' must be a whole number"),
        ({"OMPI_COMM_WORLD_RANK": "2"}, "OMPI_COMM_WORLD_RANK=2 must be below OMPI_COMM_WORLD_SIZE=2"),
    ],
)
def test_numbers_that_cannot_be_are_named(change: Mapping[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Start.read({**recorded.OPEN_MPI_4, **change})
