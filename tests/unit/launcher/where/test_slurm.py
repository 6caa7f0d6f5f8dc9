"""The hosts and slots that hvdrun takes from the environment of a Slurm job."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdlite.errors import BadHostSpec
from hvdlite.launched_by.slurm import not_of_the_job, without_step
from hvdlite.launcher.spawners import SshOptions, spawner_of, ways_to
from hvdlite.launcher.where.hosts import Host
from hvdlite.launcher.where.slurm import allocation_of
from tests.harness import FAKES

# What Slurm 22.05 sets in the batch script of ``sbatch -N2 --ntasks-per-node=2 -c 2``.
BATCH = {
    "PATH": FAKES,
    "SLURMD_NODENAME": "n1",
    "SLURM_CPUS_ON_NODE": "4",
    "SLURM_CPUS_PER_TASK": "2",
    "SLURM_GTIDS": "0",
    "SLURM_JOB_CPUS_PER_NODE": "4(x2)",
    "SLURM_JOB_ID": "71",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "0",
    "SLURM_NPROCS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}
STEP = {
    **BATCH,
    "SLURM_NTASKS": "1",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_TASKS_PER_NODE": "1",
}


def untasked(**others: str) -> dict[str, str]:
    """A job that was not asked for tasks: Slurm says one for each node."""
    asked = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK")
    return {name: value for name, value in BATCH.items() if name not in asked} | {
        "SLURM_TASKS_PER_NODE": "1(x2)",
        **others,
    }


def slots(environ: dict[str, str], *, by_gpus: bool = False) -> dict[str, int | None]:
    allocation = allocation_of(environ)
    assert allocation is not None
    return {host.name: host.slots for host in allocation.hosts(by_gpus=by_gpus)}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (BATCH, {"n1": 2, "n2": 2}),
        (
            BATCH
            | {
                "SLURM_JOB_NODELIST": "n[01-02,07],login",
                "SLURM_TASKS_PER_NODE": "2(x3),1",
                "SLURM_JOB_CPUS_PER_NODE": "4(x4)",
            },
            {"n01": 2, "n02": 2, "n07": 2, "login": 1},
        ),
        (BATCH | {"SLURM_NODELIST": "n[1-2]", "SLURM_JOB_NODELIST": ""}, {"n1": 2, "n2": 2}),
        (untasked(), {"n1": 4, "n2": 4}),
        (untasked(SLURM_CPUS_PER_TASK="2"), {"n1": 2, "n2": 2}),
        (untasked(SLURM_CPUS_PER_TASK="8"), {"n1": 1, "n2": 1}),
        (STEP, {"n1": 2, "n2": 2}),
        (BATCH | {"SLURM_STEP_ID": str(0xFFFFFFFB), "SLURM_STEP_NUM_TASKS": "9"}, {"n1": 2, "n2": 2}),
    ],
    ids=["tasks", "several", "old name", "cores", "per task", "too many", "a step of one task", "a batch step"],
)
def test_a_node_takes_its_tasks_or_as_many_ranks_as_it_has_cores_for(
    environ: dict[str, str], expected: dict[str, int]
) -> None:
    assert slots(environ) == expected


def test_gpus_decide_only_if_the_job_was_not_asked_for_tasks() -> None:
    assert slots(untasked(), by_gpus=True) == {"n1": None, "n2": None}
    assert slots(BATCH, by_gpus=True) == {"n1": 2, "n2": 2}


# What ``scontrol show job --details`` says of nodes.
SHOWN = """\
JobId=71 JobName=train
   NodeList=n[1-2] NumNodes=2
   JOB_GRES=gpu:h200:5
     Nodes=n1 CPU_IDs=0-2 Mem=1000 GRES=gpu:h200:2(IDX:0,3),gpu:a100:1(IDX:4),mps:100
     Nodes=n[2-3] CPU_IDs=0 Mem=1000 GRES=gpu:1(IDX:0)
     Nodes=n4 CPU_IDs=0 Mem=1000 GRES=
   TresPerJob=gres:gpu:5
"""


def shown_by_scontrol(folder: Path, **variables: str) -> tuple[dict[str, int], str]:
    """How many GPUs agents ask for, by node, and the arguments of scontrol."""
    fake = folder / "scontrol"
    fake.write_text(f'#!/bin/sh\necho "$@" > {folder}/asked\ncat <<END\n{SHOWN}END\n')
    fake.chmod(0o755)
    (folder / "asked").write_text("")
    job = BATCH | {"SLURM_JOB_NODELIST": "n[1-4]", "SLURM_TASKS_PER_NODE": "2(x4)"}
    allocation = allocation_of({**job, "PATH": f"{folder}:{FAKES}:/usr/bin:/bin", **variables})
    assert allocation is not None
    return {host.name: host.gpus for host in allocation.hosts()}, (folder / "asked").read_text()


def test_agents_ask_for_the_gpus_of_their_node_if_the_job_did_not_by_node(tmp_path: Path) -> None:
    counts = {"n1": 3, "n2": 1, "n3": 1, "n4": 0}
    for variable in ("SLURM_GPUS", "SLURM_GPUS_PER_TASK"):
        assert shown_by_scontrol(tmp_path, **{variable: "h200:5"}) == (counts, "show job --details 71\n")
    array = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3"}
    assert shown_by_scontrol(tmp_path, SLURM_GPUS="5", **array) == (counts, "show job --details 70_3\n")
    assert shown_by_scontrol(tmp_path, SLURM_GPUS_PER_NODE="1") == (dict.fromkeys(counts, 0), "")
    for gpus, option in ((3, ["--gpus=3"]), (0, [])):
        (command,) = ways_to([Host("n7", 2, scheduler="Slurm", job="71", gpus=gpus)], {"n7"}, SshOptions())
        assert [word for word in command if "gpus" in word] == option


def test_without_an_answer_of_scontrol_agents_ask_for_no_gpus() -> None:
    allocation = allocation_of({**BATCH, "SLURM_GPUS": "4"})
    assert allocation is not None
    assert {host.gpus for host in allocation.hosts()} == {0}


def test_there_is_no_allocation_outside_of_a_job() -> None:
    assert allocation_of({"PATH": FAKES}) is None
    assert allocation_of({"PATH": FAKES, "SLURM_JOB_ID": "71"}) is None


def test_nodes_of_a_job_are_reached_by_srun_and_others_are_not() -> None:
    allocation = allocation_of(BATCH)
    assert allocation is not None
    for host in allocation.hosts():
        assert spawner_of(host).command(host, SshOptions())[:1] != ["ssh"]
    assert spawner_of(Host("n1")).command(Host("n1"), SshOptions())[:1] == ["ssh"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"SLURM_HET_SIZE": "2"}, r"this is a heterogeneous job of Slurm \(SLURM_HET_SIZE=2\)"),
        ({"SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "4"}, "srun has started hvdrun 4 times"),
        ({"SLURM_TASKS_PER_NODE": "2"}, "SLURM_TASKS_PER_NODE='2' has no number for each of the 2 nodes"),
        ({"SLURM_TASKS_PER_NODE": "2,0"}, "SLURM_TASKS_PER_NODE='2,0' has no number"),
        (
            {"SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_CPUS_PER_NODE": ""},
            "PER_NODE='' has no number",
        ),
        ({"SLURM_JOB_NODELIST": "n[1-"}, "the nodes that Slurm lists: .* is not a host"),
        ({"PATH": "/nowhere"}, "agents on n1, n2 are started by srun, which is not on PATH"),
    ],
)
def test_what_cannot_be_used_is_refused_by_a_sentence(changes: dict[str, str], said: str) -> None:
    with pytest.raises(BadHostSpec, match=said):
        allocation_of({**BATCH, **changes})


ONE_NODE = {"SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1"}


@pytest.mark.parametrize(
    ("environ", "size", "slots", "remedy"),
    [
        (
            BATCH | ONE_NODE | {"SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1", "SLURM_CPUS_PER_TASK": "16"},
            4,
            "the 1 slots of n1:1, one for each task of this job of Slurm",
            "4 tasks, with --nodes=1 --ntasks-per-node=4 --cpus-per-task=4, or start them on this node anyway with "
            "-H localhost:4.",
        ),
        (
            BATCH | {"SLURM_TASKS_PER_NODE": "2,1"},
            7,
            "the 3 slots of n1:2,n2:1, one for each task of this job of Slurm",
            "7 tasks, with --nodes=2 --ntasks-per-node=4 --cpus-per-task=1.",
        ),
        (
            untasked(),
            9,
            "the 8 slots of n1:4,n2:4, one for each core that this job of Slurm has there",
            "9 tasks, with --nodes=2 --ntasks-per-node=5.",
        ),
        (
            STEP | ONE_NODE | {"SLURM_JOB_CPUS_PER_NODE": "4"},
            3,
            "the 2 slots of n1:2, one for each 2 cores that this job of Slurm has there",
            "3 tasks, with --nodes=1 --ntasks-per-node=3 --cpus-per-task=1, or start them on this node anyway with "
            "-H localhost:3.",
        ),
    ],
    ids=["one task of many cores", "two nodes", "no tasks", "a step"],
)
def test_too_few_slots_are_refused_with_what_to_ask_for(
    environ: dict[str, str], size: int, slots: str, remedy: str
) -> None:
    allocation = allocation_of(environ)
    assert allocation is not None
    with pytest.raises(BadHostSpec) as refusal:
        allocation.hosts(size)
    assert str(refusal.value) == f"{size} ranks do not fit into {slots}; lower -np, or ask Slurm for {remedy}"


def test_localhost_is_no_node_in_the_shell_of_salloc() -> None:
    shell = {name: value for name, value in BATCH.items() if name != "SLURMD_NODENAME"} | ONE_NODE
    allocation = allocation_of(shell | {"SLURM_TASKS_PER_NODE": "1"})
    assert allocation is not None
    with pytest.raises(BadHostSpec) as refusal:
        allocation.hosts(2)
    assert "localhost" not in str(refusal.value)


def test_without_srun_a_job_of_one_node_is_this_machine() -> None:
    one = {"PATH": "/nowhere", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1"}
    numbers = {"SLURM_TASKS_PER_NODE": "3", "SLURM_JOB_CPUS_PER_NODE": "4"}
    allocation = allocation_of({**BATCH, **one, **numbers})
    assert allocation is not None
    assert allocation.hosts() == (Host("localhost", 3),)


def test_the_command_of_srun_has_no_variable_that_srun_would_take_for_an_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SLURM_NTASKS", "SLURM_MEM_PER_CPU", "SLURM_LABELIO", "SRUN_CPUS_PER_TASK"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    (command,) = ways_to([Host("n7", 2, scheduler="Slurm", job="71")], {"n7"}, SshOptions())
    unset = {command[i + 1] for i, word in enumerate(command) if word == "-u"}
    assert unset >= {"SLURM_NTASKS", "SLURM_MEM_PER_CPU", "SLURM_LABELIO", "SRUN_CPUS_PER_TASK"}
    assert "SLURM_JOB_NAME" not in unset
    assert {"--jobid=71", "--nodelist=n7", "--overlap", "--unbuffered", "--mem=0", "--cpu-bind=none"} <= set(command)


def test_ranks_have_what_describes_the_job_and_nothing_of_a_step() -> None:
    kept = without_step({**STEP, "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "1", "HOME": "/"})
    assert kept.keys() == {
        "HOME",
        "PATH",
        "SLURMD_NODENAME",
        "SLURM_ARRAY_TASK_ID",
        "SLURM_CPUS_ON_NODE",
        "SLURM_CPUS_PER_TASK",
        "SLURM_JOB_CPUS_PER_NODE",
        "SLURM_JOB_ID",
        "SLURM_JOB_NODELIST",
        "SLURM_JOB_NUM_NODES",
        "SLURM_RESTART_COUNT",
    }
    assert "SLURM_PROCID" in not_of_the_job(STEP)
