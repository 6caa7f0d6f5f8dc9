"""Memory, disks, descriptors and clocks that are not as a job would like them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.faults.training import Ended, training
from tests.harness import cgroups, faults
from tests.harness.clocks import WallClock
from tests.harness.hosts import Network
from tests.hosts.jobs import hvdrun

HUNGRY = "import os, time\nos.environ['RANK'] == '1' and b'x' * (2 << 30)\ntime.sleep(60)"


def assert_exact(ended: Ended, ranks: int = 4) -> None:
    assert ended.code == 0, ended.said
    assert sorted(ended.reports) == list(range(ranks))
    assert {(report.error, report.wrong) for report in ended.reports.values()} == {("", "")}


@pytest.mark.alone  # beside it, hvdrun would take other ranks that are killed for such
def test_a_rank_that_the_kernel_kills_for_memory_is_told_so(own_network: Network) -> None:
    if reason := cgroups.missing("memory"):
        pytest.skip(reason)
    with cgroups.short_of_memory([own_network["b"].sshd], more_bytes=300 << 20):
        ended = hvdrun(own_network["a"], "-H", "a:1,b:1", sys.executable, "-S", "-c", HUNGRY)
    assert ended.returncode == 128 + 9
    assert "rank 1 on b was killed by the kernel: out of memory" in ended.stderr


def test_a_full_disk_under_the_logs_costs_the_logs_only(network: Network, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    with faults.small_disk(network["a"], logs, "64k"):
        network["a"].run("dd", "if=/dev/zero", f"of={logs}/full", "bs=4k", "count=12")
        with training(network, length=1 << 10, options=("--output-filename", str(logs))) as job:
            job.wait_for_steps(1000)
            ended = job.finish()
    assert_exact(ended)
    assert ended.said.count("No space left on device") == 1
    assert "bytes of the log files were dropped" in ended.said


def test_a_full_disk_under_the_timeline_costs_the_timeline_only(network: Network, tmp_path: Path) -> None:
    folder = tmp_path / "timeline"
    folder.mkdir()
    with faults.small_disk(network["a"], folder, "256k"):
        options = ("--timeline-filename", str(folder / "t.json"))
        with training(network, length=1 << 10, options=options) as job:
            job.wait_for_steps(1000)
            ended = job.finish()
        events = json.loads(network["a"].check("cat", str(folder / "t.json")))
    assert_exact(ended)
    assert ended.said.count("the timeline") == ended.said.count("No space left on device") == 1
    assert {event["pid"] for event in events} <= {0, 1, 2, 3}


def test_one_timeline_has_the_ranks_of_all_hosts(network: Network, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with training(network, length=1 << 10, options=("--timeline-filename", str(path))) as job:
        job.wait_for_steps(100)
        ended = job.finish()
    assert_exact(ended)
    assert "timeline" not in ended.said
    moves = [event for event in json.loads(path.read_text()) if event.get("cat") == "move"]
    assert {event["pid"] for event in moves} == {0, 1, 2, 3}


def test_a_small_dev_shm_is_enough(network: Network) -> None:
    shm = Path("/dev/shm")
    with (
        faults.small_disk(network["a"], shm, "1m"),
        faults.small_disk(network["b"], shm, "1m"),
        training(network, length=16 << 20) as job,
    ):
        job.wait_for_steps(2)
        assert_exact(job.finish())


def test_clocks_that_differ_and_jump_change_nothing(network: Network, tmp_path: Path) -> None:
    clock = WallClock(tmp_path, shift_s=3600)
    wrong = " ".join(f"{name}={value}" for name, value in clock.environment.items())
    program = ("sh", "-c", f'[ $HVDLITE_HOSTNAME = b ] && export {wrong}; exec "$@"', "sh")
    with training(network, program=program) as job:
        assert ["LD_PRELOAD" in job.rank(rank).environ() for rank in range(4)] == [False, False, True, True]
        for shift_s in (-90, 7200, 0):
            clock.set(shift_s)
            job.wait_for_steps(10)
        assert_exact(job.finish())


@pytest.mark.faults
def test_few_descriptors_are_enough(network: Network) -> None:
    with training(network, program=("prlimit", "--nofile=64")) as job:
        job.wait_for_steps(5)
        assert_exact(job.finish())


def test_too_few_descriptors_are_an_error_that_says_what_to_raise(network: Network) -> None:
    program = "import hvdlite as hvd\nhvd.init()"
    ended = hvdrun(network["a"], "-H", "a:2,b:2", "prlimit", "--nofile=32", sys.executable, "-c", program)
    assert ended.returncode == 1
    assert "Too many open files. Raise the limit: ulimit -n" in ended.stderr
