"""hvdrun in jobs of a real Slurm that confines them to cores, memory and GPUs by control groups."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.engines.test_slurm import HVDRUN, NOTING, PYTHON, script, told
from tests.harness import slurm
from tests.harness.patience import until
from tests.harness.slurm import Cluster

CORES = "grep Cpus_allowed_list /proc/self/status"
# Rank 1 takes more memory than its job has.
GREEDY = """
import os, signal
if os.environ["HVDLITE_RANK"] == "1":
    bytearray(400 << 20)
signal.pause()
"""


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    if reason := slurm.missing() or slurm.missing_cgroups():
        pytest.skip(reason)
    with Cluster(has_cgroups=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, which a test leaves as it was: no job, and no process of one."""
    yield shared_cluster
    shared_cluster.check("scancel", "--user=root", "--quiet")
    shared_cluster.wait_until_idle()


def test_ranks_may_use_all_cores_of_the_job(cluster: Cluster) -> None:
    """Although an agent is a step of one task."""
    job = cluster.submit(
        script(CORES, f"{HVDRUN} sh -c {shlex.quote(CORES)}"), "--nodes=2", "--ntasks=2", "--exclusive"
    )
    of_ranks = told(job)
    (of_script,) = re.findall(r"^Cpus.*", job.output, re.MULTILINE)
    assert of_ranks == [of_script] * 2


def test_agents_share_memory_and_gpus_of_the_job_with_other_steps(cluster: Cluster) -> None:
    place, resources = f"{cluster.folder}/step", ("--mem=200", "--gres=gpu:2")
    step = f"touch {place}-began; until [ -e {place}-over ]; do sleep 0.1; done"
    # No driver opens the device, but before that Linux looks whether the group may open it.
    rank = f"echo $CUDA_VISIBLE_DEVICES $(LC_ALL=C cat {cluster.folder}/gpu1 2>&1 | cut -d: -f3)"
    lines = [
        f"srun {' '.join(resources)} sh -c {shlex.quote(step)} &",
        f"until [ -e {place}-began ]; do sleep 0.1; done",
        f"{HVDRUN} --gpus-per-proc 2 sh -c {shlex.quote(rank)}",
        f"touch {place}-over",
        "wait",
    ]
    assert (
        told(cluster.submit(script(*lines), "--nodes=2", "--ntasks=2", *resources))
        == ["0,1 No such device or address"] * 2
    )


def test_a_rank_that_takes_more_memory_than_the_job_has_is_named(cluster: Cluster) -> None:
    greedy = f"exec {HVDRUN} {PYTHON} -S -c {shlex.quote(GREEDY)}"
    job = cluster.submit(script(greedy), "--nodes=2", "--ntasks=2", "--mem=200")
    assert job.wait() == 137, job.output
    assert f"hvdrun: rank 1 on {cluster.nodes[1]} was killed by the kernel: out of memory" in job.output


def test_scancel_ends_ranks_with_sigterm_once(cluster: Cluster) -> None:
    job = cluster.submit(script(f"exec {HVDRUN} --grace 20 {NOTING}"), "--nodes=2", "--ntasks=2")
    job.wait_for_output("ready", 2)
    cluster.check("scancel", job.number)
    cluster.wait_until_idle()
    assert [job.output.count(word) for word in ("noted SIGTERM", "goodbye")] == [2, 2], job.output


def test_an_announced_end_reaches_each_rank_once(cluster: Cluster) -> None:
    """Slurm signals the processes that it has started, the script's shell, or all."""
    job = cluster.submit(script(f"exec {HVDRUN} {NOTING}"), "--nodes=2", "--ntasks=2")
    job.wait_for_output("ready", 2)
    for count, whom in enumerate(([], ["--batch"], ["--full"]), start=1):
        cluster.check("scancel", "--signal=USR1", *whom, job.number)
        job.wait_for_output("noted SIGUSR1", 2 * count)
    cluster.check("scancel", job.number)
    cluster.wait_until_idle()
    assert job.output.count("noted SIGUSR1") == 6, job.output


def test_without_exec_ranks_get_sigterm_too_and_have_the_time_to_save(cluster: Cluster) -> None:
    """The shell dies at once, and with it Slurm kills hvdrun and all of its sruns."""
    places = [cluster.folder / f"rank-{number}" for number in range(2)]
    rank = f"exec {NOTING} > {cluster.folder}/rank-$HVDLITE_RANK"
    job = cluster.submit(script(f"{HVDRUN} --grace 20 sh -c {shlex.quote(rank)}", "true"), "--nodes=2", "--ntasks=2")
    until(lambda: all(place.exists() and "ready" in place.read_text() for place in places))
    cluster.check("scancel", job.number)
    cluster.wait_until_idle()
    assert [place.read_text().splitlines() for place in places] == [["ready", "noted SIGTERM", "goodbye"]] * 2
