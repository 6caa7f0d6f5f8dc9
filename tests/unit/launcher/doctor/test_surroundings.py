"""What `doctor --env` makes of an environment: which engine started a process, and what is missing or contradictory."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import pytest

from hvdlite.launched_by.table import ENGINES
from hvdlite.launcher.doctor.findings import Weight
from hvdlite.launcher.doctor.surroundings import describe, examine
from tests.harness import FAKES
from tests.unit import engine_environments as recorded

KEY = "c0ffee12" * 8
HERE = {"HVDLITE_SECRET": KEY, "HVDLITE_COORDINATOR": "127.0.0.1"}
OF_HVDRUN = {"HVDLITE_RANK": "1", "HVDLITE_SIZE": "2", "HVDLITE_RENDEZVOUS": "unix://@x", "HVDLITE_JOB": "j"}
TRAINER = {"PET_NODE_RANK": "1", "PET_NNODES": "3", "PET_MASTER_ADDR": "a", "PET_MASTER_PORT": "5"}
NOT_RECORDED = {"PATH": FAKES, "SLURM_TASKS_PER_NODE": "2"}
HALF = "says which rank this is, but {} missing"

# The environment, the engine that counts, its rank and size, and where the ranks meet.
WORKING: dict[str, tuple[Mapping[str, str], str, tuple[int, int], str]] = {
    "horovodrun": (recorded.HOROVODRUN, "horovodrun", (1, 2), "on this host"),
    "torchrun": (recorded.TORCHRUN, "torchrun", (1, 2), "on this host"),
    "Open MPI 4": (recorded.OPEN_MPI_4, "Open MPI", (1, 2), "on this host"),
    "Open MPI 5": (recorded.OPEN_MPI_5, "Open MPI", (0, 2), "on this host"),
    "MPICH": (recorded.HYDRA, "MPICH", (1, 2), "on this host"),
    "Slurm": (recorded.SLURM_STEP, "Slurm", (1, 2), "on this host"),
    "torch's own": (recorded.TORCH_DISTRIBUTED | HERE, "torch.distributed", (1, 2), "at 127.0.0.1"),
    "two nodes": (recorded.TORCHRUN_ON_TWO_NODES | HERE, "torchrun", (2, 4), "at 127.0.0.1"),
    "rank 0 of two nodes": (recorded.OPEN_MPI_5 | HERE | {"OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI", (0, 4), "at 127.0"),
    "hvdrun": (OF_HVDRUN | {"HVDLITE_SECRET": KEY}, "hvdrun", (1, 2), "which hvdrun serves"),
    "hvdrun in a step": (recorded.SLURM_STEP | OF_HVDRUN | {"HVDLITE_SECRET": KEY}, "hvdrun", (1, 2), "hvdrun serves"),
    "by hand": (HERE | {"HVDLITE_RANK": "1", "HVDLITE_SIZE": "2"}, "hvdlite's own variables", (1, 2), "at 127.0.0.1"),
    "nothing": ({}, "", (0, 1), ""),
}
# The environment, and what the problem says.
BROKEN: dict[str, tuple[Mapping[str, str], str]] = {
    "RANK alone": ({"RANK": "3"}, "RANK=3 " + HALF.format("WORLD_SIZE and MASTER_ADDR and MASTER_PORT are")),
    "RANK 0 alone": ({"RANK": "0"}, "RANK=0 says which"),
    "WORLD_SIZE alone": ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 says that this process is one of several, but not which"),
    "no MASTER_PORT": ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT is missing"),
    "half of Open MPI": ({"OMPI_COMM_WORLD_RANK": "0"}, HALF.format("OMPI_COMM_WORLD_SIZE is")),
    "half of MPICH": ({"PMI_RANK": "0"}, HALF.format("PMI_SIZE and MPI_LOCALRANKID and MPI_LOCALNRANKS are")),
    "half of horovodrun": ({"HOROVOD_RANK": "0"}, HALF.format("HOROVOD_SIZE is")),
    "half of a step": (
        {name: value for name, value in recorded.SLURM_STEP.items() if name != "SLURM_STEP_NUM_TASKS"},
        HALF.format("SLURM_STEP_NUM_TASKS is"),
    ),
    "no key": (recorded.SLURM_STEP_ON_TWO_NODES, "need HVDLITE_SECRET, a key that keeps strangers out"),
    "a bad key": (recorded.TORCH_DISTRIBUTED | HERE | {"HVDLITE_SECRET": KEY[1:]}, "must be 64 hexadecimal digits"),
    "no key of hvdrun": (OF_HVDRUN, "HVDLITE_RENDEZVOUS needs HVDLITE_JOB and HVDLITE_SECRET beside it"),
    "an unknown host": (
        recorded.TORCH_DISTRIBUTED | {"HVDLITE_SECRET": KEY, "MASTER_ADDR": "nowhere.invalid"},
        "the host 'nowhere.invalid' of rank 0 cannot be found",
    ),
    "rank 0 elsewhere": (
        recorded.OPEN_MPI_5 | HERE | {"OMPI_COMM_WORLD_SIZE": "4", "HVDLITE_COORDINATOR": "192.0.2.7"},
        "which cannot listen at 192.0.2.7",
    ),
    "more here than there are": (
        recorded.TORCHRUN | {"LOCAL_WORLD_SIZE": "8"},
        "there cannot be 8 ranks on this host if there are 2 altogether",
    ),
    "a rank too high": (recorded.OPEN_MPI_4 | {"OMPI_COMM_WORLD_RANK": "2"}, "must be below OMPI_COMM_WORLD_SIZE=2"),
    "no number": (recorded.HYDRA | {"PMI_RANK": "one"}, "PMI_RANK='one' must be a whole number"),
    "a rank without a place": ({"HVDLITE_RANK": "1", "HVDLITE_SIZE": "2"}, "nothing says where the others are"),
    "a node without a key": (TRAINER, "hvdrun would not start: nodes need a key that keeps strangers out"),
    "a node with a bad key": (
        TRAINER | {"HVDLITE_SECRET": KEY[1:]},
        "hvdrun would not start: HVDLITE_SECRET must be 64 hexadecimal digits",
    ),
    "a node that cannot be": (
        TRAINER | {"PET_NNODES": "1:3"},
        "hvdrun would not start: PET_NNODES='1:3' must be a whole number",
    ),
    "hosts that cannot be read": (
        {"PBS_JOBID": "7", "PBS_NODEFILE": "/nowhere"},
        "hvdrun would not start: PBS_NODEFILE=/nowhere cannot be read",
    ),
    "a Slurm job without srun": (
        recorded.SLURM_BATCH_SCRIPT | {"PATH": "/nowhere", "SLURM_JOB_NODELIST": "n[1-2]"},
        "hvdrun would not start: agents on n1, n2 are started by srun, which is not on PATH",
    ),
    "an invalid setting": (recorded.TORCHRUN | {"HVDLITE_PLANE": "bus"}, "HVDLITE_PLANE='bus' must be one of"),
}
# The environment, the weight of the finding and what it says; a job starts all the same.
REMARKABLE: dict[str, tuple[Mapping[str, str], Weight, str]] = {
    "a batch script": (
        recorded.SLURM_BATCH_SCRIPT | {"PATH": FAKES},
        Weight.WARNING,
        "a job of one rank in a Slurm allocation of 2",
    ),
    "a shell of salloc": (
        recorded.SLURM_SHELL_OF_SALLOC | {"PATH": FAKES},
        Weight.WARNING,
        "a Slurm allocation of 2 tasks",
    ),
    "an interactive step": (
        recorded.SLURM_INTERACTIVE_SHELL | NOT_RECORDED,
        Weight.WARNING,
        "a Slurm allocation of 2 tasks",
    ),
    "PMIx alone": ({"PMIX_RANK": "3"}, Weight.WARNING, "although a launcher has set PMIX_RANK"),
    "an outer step": (
        recorded.SLURM_STEP_ON_TWO_NODES | recorded.TORCHRUN,
        Weight.NOTE,
        "SLURM_PROCID=2 and SLURM_STEP_NUM_TASKS=3 of Slurm do not count",
    ),
    "a pod of an indexed Job": (
        {"JOB_COMPLETION_INDEX": "1"},
        Weight.NOTE,
        "this is pod 1 of an indexed Job (JOB_COMPLETION_INDEX)",
    ),
    "half of a node": (
        {**TRAINER, "PET_NODE_RANK": ""},
        Weight.WARNING,
        "PET_NNODES=3 of Kubeflow Trainer says that there are several nodes, but PET_NODE_RANK is",
    ),
    "a local rank too high": (recorded.TORCHRUN | {"LOCAL_RANK": "2"}, Weight.WARNING, "the local rank 2 is not below"),
}


@pytest.mark.parametrize("name", WORKING)
def test_the_engine_that_counts_is_named_with_what_decided(name: str) -> None:
    environ, engine, (rank, size), place = WORKING[name]
    found = examine(environ)
    assert (found.engine, found.findings, found.would_start) == (engine, [], True)
    assert found.start is not None
    assert (found.start.rank, found.start.size) == (rank, size)
    assert place in found.place
    assert bool(found.key) == (size > 1)
    text = "\n".join(describe(found))
    if engine:
        decided = {str(rank), str(size)}
        assert decided <= set(found.variables.values())
        assert all(f"{variable}={environ[variable]}" in text for variable in found.variables)
    else:
        assert "python here would start alone" in text


def test_every_engine_of_the_table_has_its_case() -> None:
    assert {engine for _, engine, _, _ in WORKING.values()} >= {engine.name for engine in ENGINES}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_missing_or_contradictory_is_a_problem(name: str) -> None:
    environ, expected = BROKEN[name]
    found = examine(environ)
    assert not found.would_start
    problems = [finding.text for finding in found.findings if finding.weight is Weight.PROBLEM]
    assert [text for text in problems if expected in text], problems


@pytest.mark.parametrize("name", REMARKABLE)
def test_what_does_not_keep_a_job_from_starting_is_said(name: str) -> None:
    environ, weight, expected = REMARKABLE[name]
    found = examine(environ)
    assert found.would_start
    told = [finding.weight for finding in found.findings if expected in finding.text]
    assert told == [weight], found.findings
    assert len(found.findings) == 1


# The environment, and the rest of "hvdrun here would": no finding is to say it again.
STARTED_HERE: dict[str, tuple[Mapping[str, str], str]] = {
    "nothing": ({}, "start ranks on this host only"),
    "a node": (
        TRAINER | {"HVDLITE_SECRET": KEY},
        "be node 1 of 3, as Kubeflow Trainer "
        "(PET_NODE_RANK=1, PET_NNODES=3, PET_MASTER_ADDR=a, PET_MASTER_PORT=5) says",
    ),
    "the only node": (TRAINER | {"PET_NNODES": "1", "PET_NODE_RANK": "0"}, "be node 0 of 1, as Kubeflow Trainer"),
    "hosts of LSF": (
        {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "a 2 b 1"},
        "start ranks on a:2,b:1, over ssh, as LSF says (LSB_MCPU_HOSTS)",
    ),
    "nodes of a Slurm job": (
        {**recorded.SLURM_BATCH_SCRIPT, "PATH": FAKES, "SLURM_NTASKS": "1"},
        ", through srun, as job ",
    ),
}


@pytest.mark.parametrize("name", STARTED_HERE)
def test_outside_of_ranks_the_report_begins_with_what_hvdrun_would_do_and_then_python(name: str) -> None:
    environ, expected = STARTED_HERE[name]
    found = examine(environ)
    assert (found.findings, found.would_start) == ([], True)
    first, second, *_ = describe(found)
    assert first.startswith("hvdrun here would ")
    assert expected in first
    assert second == "python here would start alone, as a job of one rank"


def test_a_pod_of_an_indexed_job_hears_of_the_key_only_if_it_lacks_it() -> None:
    for key in ("", KEY):
        (finding,) = examine({"JOB_COMPLETION_INDEX": "1", "HVDLITE_SECRET": key}).findings
        assert "give hvdrun --nnodes and --master" in finding.advice
        assert ("HVDLITE_SECRET" in finding.advice) is not bool(key)


def test_a_port_in_use_is_a_problem_of_rank_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        environ = {"HVDLITE_RANK": "0", "HVDLITE_SIZE": "2", "HVDLITE_SECRET": KEY, "HVDLITE_COORDINATOR": address}
        assert "is in use" in examine(environ).findings[0].text
        assert examine(environ | {"HVDLITE_RANK": "1"}).would_start
