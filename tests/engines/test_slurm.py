"""hvdrun in jobs of a real Slurm of two nodes: it takes their hosts and slots, and is a good guest."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
from collections.abc import Iterator

import pytest

from hvdlite.rendezvous.job import Job as HvdliteJob
from tests.engines.starting import JOB, ROOT
from tests.harness import slurm
from tests.harness.patience import PATIENCE_S, until
from tests.harness.slurm import Cluster, Job
from tests.house.blocks import Block, runnable_blocks
from tests.launcher.hvdrun import COMMAND, read_until

HVDRUN = shlex.join(COMMAND)
PYTHON = shlex.quote(sys.executable)
SUMS = shlex.join([sys.executable, str(JOB), "sums"])
WHERE = "'echo $(hostname) $HVDLITE_RANK/$HVDLITE_SIZE $HVDLITE_LOCAL_RANK/$HVDLITE_LOCAL_SIZE'"
# A rank that writes which signals it gets, and ends a while after the first SIGTERM, so that a second would be counted.
NOTES = """
import os, signal, time
deadline = None
def note(signum, frame):
    global deadline
    os.write(1, f"noted {signal.Signals(signum).name}\\n".encode())
    if signum == signal.SIGTERM and deadline is None:
        deadline = time.monotonic() + 2
for each in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(each, note)
os.write(1, b"ready\\n")
while deadline is None or time.monotonic() < deadline:
    time.sleep(0.02)
os.write(1, b"goodbye\\n")
"""
NOTING = f"{PYTHON} -S -c {shlex.quote(NOTES)}"
WAITING = "sh -c 'echo ready; exec sleep 600'"


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    if reason := slurm.missing():
        pytest.skip(reason)
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, which a test leaves as it was: no job, and no process of one."""
    yield shared_cluster
    shared_cluster.check("scancel", "--user=root", "--quiet")
    shared_cluster.wait_until_idle()


def script(*lines: str) -> str:
    return "\n".join(["#!/bin/sh", *lines, ""])


def told(job: Job) -> list[str]:
    """The lines of the ranks, without their prefix, in the order of the ranks."""
    assert job.wait() == 0, job.output
    found = re.findall(r"^\[(\d+)\]<stdout>:(.*)$", job.output, re.MULTILINE)
    return [line for _, line in sorted(found, key=lambda each: int(each[0]))]


def test_a_batch_script_gives_hosts_and_slots(cluster: Cluster) -> None:
    lines = told(cluster.submit(script(f"{HVDRUN} sh -c {WHERE}"), "--ntasks=3", "--nodes=2"))
    assert lines == ["n1 0/3 0/2", "n1 1/3 1/2", "n2 2/3 0/1"]


def test_without_tasks_a_node_takes_as_many_ranks_as_it_has_cores_for(cluster: Cluster) -> None:
    job = script(f"{HVDRUN} -np 5 sh -c {WHERE}", f"{HVDRUN} -ppn 1 sh -c {WHERE}")
    lines = told(cluster.submit(job, "--nodes=2", "--exclusive"))
    assert sorted(lines) == sorted(
        [f"n1 {rank}/5 {rank}/4" for rank in range(4)] + ["n2 4/5 0/1", "n1 0/2 0/1", "n2 1/2 0/1"]
    )


@pytest.mark.parametrize(
    ("asked", "flags", "expected"),
    [
        ("--gres=gpu:2 --ntasks-per-node=2", "--gpus-per-proc 1", ["n1 0", "n1 1", "n2 0", "n2 1"]),
        ("--gpus-per-node=2 --cpus-per-task=2", "-np auto", ["n1 0,1", "n1 0,1", "n2 0,1", "n2 0,1"]),
        ("--gpus-per-task=1 --ntasks-per-node=2", "--gpus-per-proc 1", ["n1 0", "n1 1", "n2 0", "n2 1"]),
        ("--gpus=3 --ntasks=3", "--gpus-per-proc 1", ["n1 0", "n1 1", "n2 0"]),
        ("--gpus=2 --ntasks=2 --array=7", "", ["n1 0", "n2 0"]),
    ],
)
def test_ranks_get_the_gpus_of_their_node_however_slurm_was_asked_for_them(
    cluster: Cluster, asked: str, flags: str, expected: list[str]
) -> None:
    rank = "'echo $(hostname) ${CUDA_VISIBLE_DEVICES:-none}'"
    assert told(cluster.submit(script(f"{HVDRUN} {flags} sh -c {rank}"), "--nodes=2", *asked.split())) == expected


def test_ranks_meet_and_know_the_job_but_no_step(cluster: Cluster) -> None:
    job = cluster.submit(
        script(f"{HVDRUN} {SUMS}", f"{HVDRUN} sh -c 'env | grep ^SLURM_ | cut -d= -f1 | sort | xargs'"),
        "--nodes=2",
        "--ntasks-per-node=2",
        "--array=7",
    )
    lines = told(job)
    places = sorted(json.loads(line)["place"] for line in lines if line.startswith("{"))
    assert places == [[0, 4, 0, 2, 0, 2], [1, 4, 1, 2, 0, 2], [2, 4, 0, 2, 1, 2], [3, 4, 1, 2, 1, 2]]
    names = set(" ".join(lines).split())
    assert {"SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_NODELIST"} <= names
    assert not {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID", "SLURM_NODEID"} & names


def test_tasks_of_an_array_are_jobs_of_their_own_at_the_same_time(cluster: Cluster) -> None:
    place = f"{cluster.folder}/at"  # each waits for the other there, so that they run together on the same nodes
    meet = f"touch {place}-$SLURM_ARRAY_TASK_ID; until [ -e {place}-1 ] && [ -e {place}-2 ]; do sleep 0.1; done"
    job = cluster.submit(script(meet, f"{HVDRUN} {SUMS}"), "--nodes=2", "--ntasks=2", "--mem=100", "--array=1-2")
    until(lambda: job.output.count('"place"') == 4)
    assert sorted(re.findall(r'"place": \[(\d), 2, 0, 1, \d, 2\]', job.output)) == ["0", "0", "1", "1"], job.output


def test_a_rank_that_fails_is_named_with_its_node_and_code(cluster: Cluster) -> None:
    job = cluster.submit(
        script(f"exec {HVDRUN} sh -c '[ $HVDLITE_RANK = 1 ] && exit 7; sleep 600'"), "--nodes=2", "--ntasks=2"
    )
    assert job.wait() == 7, job.output
    assert re.search(r"hvdrun: rank 1 on n2 ended with code 7", job.output)


def test_no_key_is_stored_or_shown(cluster: Cluster) -> None:
    job = cluster.submit(
        script(f"{HVDRUN} sh -c 'echo key $HVDLITE_SECRET; exec sleep 600'"),
        "--nodes=2",
        "--ntasks=2",
        "--job-name=keys",
    )
    job.wait_for_output("key ", 2)
    (key,) = set(re.findall(r"key ([0-9a-f]{64})$", job.output, re.MULTILINE))
    assert HvdliteJob("job", key).secret == key
    assert "JobName=keys" in cluster.stored()
    assert key not in cluster.stored()
    assert cluster.processes("sleep 600")
    assert not cluster.processes(key)


def test_scancel_ends_ranks_with_sigterm_once(cluster: Cluster) -> None:
    job = cluster.submit(script(f"exec {HVDRUN} --grace 20 {NOTING}"), "--nodes=2", "--ntasks=3")
    job.wait_for_output("ready", 3)
    cluster.check("scancel", job.number)
    cluster.wait_until_idle()
    assert job.output.count("noted SIGTERM") == 3, job.output
    assert job.output.count("goodbye") == 3, job.output
    assert re.search(r"hvdrun: SIGTERM(?: on n[12])?: ending 3 rank\(s\)", job.output), job.output
    assert job.state == "CANCELLED"


@pytest.mark.parametrize("whom", ["the steps", "hvdrun"])
def test_an_announced_end_reaches_each_rank_once(cluster: Cluster, whom: str) -> None:
    """As with ``--signal=USR1@60`` and ``--signal=B:USR1@60``, but at once."""
    job = cluster.submit(script(f"exec {HVDRUN} {NOTING}"), "--nodes=2", "--ntasks=3")
    job.wait_for_output("ready", 3)
    cluster.check("scancel", "--signal=USR1", *(["--batch"] if whom == "hvdrun" else []), job.number)
    job.wait_for_output("noted SIGUSR1", 3)
    cluster.check("scancel", "--signal=TERM", "--batch", job.number)
    assert job.wait() == 128 + signal.SIGTERM
    assert job.output.count("noted SIGUSR1") == 3
    assert job.output.count("noted SIGTERM") == 3


def test_a_time_limit_is_announced_and_leaves_ranks_the_time_to_save(cluster: Cluster) -> None:
    """Slurm looks at the limits of all jobs every 30 s, so three are tested at once."""
    announced = {"": "now", "--signal=B:USR1@60": "now+60", "--signal=USR1@60": "now+60"}
    jobs = {
        option: cluster.submit(
            script(f"exec {HVDRUN} --grace 20 {NOTING}"), "--nodes=2", "--ntasks=2", "--mem=100", *option.split()
        )
        for option in announced
    }
    for job in jobs.values():
        job.wait_for_output("ready", 2)
    for option, end in announced.items():
        cluster.check("scontrol", "update", f"JobId={jobs[option].number}", f"EndTime={end}")
    over = jobs.pop("")
    until(lambda: "noted SIGTERM" in over.output)
    over.wait()
    assert over.state == "TIMEOUT"
    assert re.search(r"hvdrun: SIGTERM(?: on n[12])?: ending 2 rank\(s\)", over.output), over.output
    for rank in range(2):
        noted = re.findall(rf"^\[{rank}\]<stdout>:(?:noted )?(\w+)$", over.output, re.MULTILINE)
        assert noted[:2] == ["ready", "SIGTERM"], over.output
        assert noted[-1] == "goodbye", over.output
    for option, job in jobs.items():
        job.wait_for_output("noted SIGUSR1", 2)
        assert job.output.count("noted") == 2, f"{option}\n{job.output}"


def test_a_requeued_job_starts_anew(cluster: Cluster) -> None:
    rank = 'echo try ${SLURM_RESTART_COUNT:-0} $HVDLITE_JOB; [ "$SLURM_RESTART_COUNT" ] || exec sleep 600'
    job = cluster.submit(script(f"exec {HVDRUN} sh -c {shlex.quote(rank)}"), "--nodes=2", "--ntasks=2", "--requeue")
    job.wait_for_output("try 0", 2)
    cluster.check("scontrol", "requeue", job.number)
    until(lambda: job.state == "PENDING")
    # Not in two minutes. But in the second in which Slurm killed the job, its nodes would still refuse to start it.
    cluster.check("scontrol", "update", f"JobId={job.number}", "StartTime=now+2")
    job.wait_for_output("try 1", 2)
    assert job.wait() == 0, job.output
    names = [set(re.findall(rf"try {count} (\w+)", job.output)) for count in (0, 1)]
    assert [len(each) for each in names] == [1, 1]
    assert names[0] != names[1]


def test_a_draining_node_ends_no_job(cluster: Cluster) -> None:
    rank = f"echo ready; until [ -e {cluster.folder}/go ]; do sleep 0.1; done"
    lines = (f"{HVDRUN} sh -c {shlex.quote(rank)}", f"{HVDRUN} sh -c 'echo again'")
    job = cluster.submit(script(*lines), "--nodes=2", "--ntasks=2")
    job.wait_for_output("ready", 2)
    cluster.check("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    try:
        (cluster.folder / "go").touch()
        job.wait_for_output("again", 2)
        assert job.wait() == 0, job.output
    finally:
        cluster.check("scontrol", "update", "NodeName=n2", "State=RESUME")


def test_a_node_that_vanishes_is_named(cluster: Cluster) -> None:
    job = cluster.submit(script(f"exec {HVDRUN} {WAITING}"), "--nodes=2", "--ntasks=2")
    job.wait_for_output("ready", 2)
    try:
        cluster.network.set_port("n2", "down")
        job.wait_for_output("rank 1 on n2 was lost: no sign of life from n2 for 8 s", 1)
    finally:
        cluster.network.set_port("n2", "up")
    assert job.wait() == 1


def test_the_shell_of_salloc(cluster: Cluster) -> None:
    with cluster.popen(
        "salloc", "--nodes=2", "--ntasks=2", "--quiet", *COMMAND, "sh", "-c", "hostname; echo ready; exec sleep 600"
    ) as user:
        assert user.stdout is not None
        out = read_until(user.stdout.fileno(), lambda found: found.count(b"ready\n") == 2)
        assert b"[0]<stdout>:n1\n" in out
        assert b"[1]<stdout>:n2\n" in out
        (hvdrun,) = (
            process for process in cluster.head.processes("hvdlite.launcher.cli") if process.name() != "salloc"
        )
        hvdrun.send_signal(signal.SIGINT)
        user.wait(PATIENCE_S)
        assert user.stderr is not None
        assert "hvdrun: SIGINT: ending 2 rank(s)" in user.stderr.read().decode()
    assert user.returncode == 130


def test_a_step_of_one_task_and_a_step_of_several(cluster: Cluster) -> None:
    one = cluster.run(
        "salloc",
        "--nodes=2",
        "--ntasks=4",
        "--quiet",
        "srun",
        "-n1",
        "-N1",
        *COMMAND,
        "-np",
        "4",
        "sh",
        "-c",
        "hostname",
    )
    assert sorted(line.partition(":")[2] for line in one.stdout.splitlines()) == ["n1"] * 3 + ["n2"], one.stderr
    several = cluster.run("salloc", "--nodes=2", "--ntasks=2", "--quiet", "srun", *COMMAND, "true")
    assert several.returncode == 2
    assert "srun has started hvdrun 2 times" in several.stderr


def test_a_heterogeneous_job_is_refused(cluster: Cluster) -> None:
    ended = cluster.run("salloc", "--quiet", "-N1", ":", "-N1", *COMMAND, "true")
    assert ended.returncode == 2
    assert "this is a heterogeneous job of Slurm (SLURM_HET_SIZE=2)" in ended.stderr


def test_sync_brings_the_folder_to_the_other_node(cluster: Cluster) -> None:
    folder = "/run/only-here"  # a node's own
    lines = [
        f"mkdir -p {folder}",
        f"cd {folder}",
        "echo echo '$(hostname)' brought > brought.sh",
        f"{HVDRUN} --sync sh brought.sh",
    ]
    assert told(cluster.submit(script(*lines), "--nodes=2", "--ntasks=2")) == ["n1 brought", "n2 brought"]


def test_doctor_examines_the_nodes_and_says_what_hvdrun_would_do(cluster: Cluster) -> None:
    job = cluster.submit(script(f"{HVDRUN} doctor --json", f"{HVDRUN} doctor --env"), "--nodes=2", "--ntasks=3")
    job.wait()
    report, end = json.JSONDecoder().raw_decode(job.output)
    assert list(report["hosts"]) == ["n1", "n2"]
    assert all(not host["problem"] for host in report["hosts"].values()), job.output
    would = f"hvdrun here would start ranks on n1:2,n2:1, through srun, as job {job.number} of Slurm says"
    assert would in job.output[end:]


@pytest.mark.parametrize("block", list(runnable_blocks(ROOT / "docs/slurm.md", framework="slurm")), ids=str)
def test_the_script_of_the_documentation_runs(cluster: Cluster, block: Block) -> None:
    job = cluster.submit(block.text)
    assert job.wait() == 0, job.output
    assert "NumTasks=4" in job.record
    assert "[0]<stdout>:" in job.output
