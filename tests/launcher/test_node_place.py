"""hvdrun where variables, or options, say that this is one of several nodes, or the only one."""

from __future__ import annotations

import os

from tests.launcher.hvdrun import run
from tests.unit.launcher.nodes.test_place import TRAINER


def test_one_node_is_a_job_of_its_own_and_takes_its_slots_from_the_environment() -> None:
    alone = {**TRAINER, "PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "2"}
    ended = run("sh", "-c", "echo $RANK", **alone)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["[0]<stdout>:0", "[1]<stdout>:1"]


def test_the_only_node_takes_as_many_ranks_as_the_user_wants_and_else_one_for_each_core() -> None:
    cores = len(os.sched_getaffinity(0))
    alone = {**TRAINER, "PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "cpu"}
    for options, count in ((("-np", str(cores + 1)), cores + 1), ((), cores)):
        ended = run(*options, "sh", "-c", "echo here", **alone)
        assert (ended.returncode, ended.stdout.count("here")) == (0, count), ended.stderr


def test_hosts_that_the_user_names_come_before_the_environment_and_exclude_the_options() -> None:
    assert run("-H", "localhost:1", "true", **TRAINER).returncode == 0
    ended = run("-H", "localhost:1", "--node-rank", "0", "true")
    assert (ended.returncode, "leave them out with --node-rank" in ended.stderr) == (2, True)


def test_a_rank_that_starts_hvdrun_and_hvdlite_run_are_no_nodes() -> None:
    assert run("-np", "1", "true", HVDLITE_RANK="0", HVDLITE_SIZE="1", **TRAINER).returncode == 0


def test_half_of_a_place_is_warned_of_where_nobody_names_hosts() -> None:
    half = {name: value for name, value in TRAINER.items() if name not in ("PET_NODE_RANK", "PET_MASTER_ADDR")}
    warning = "several nodes, but PET_NODE_RANK and PET_MASTER_ADDR are missing, so hvdrun starts a job of its own"
    assert warning in run("-np", "1", "true", **half).stderr
    for options, environ in (
        (("-H", "localhost:1"), half),
        (("-np", "1"), {**half, "PET_NNODES": "1"}),
        (("-np", "1"), {**half, "HVDLITE_RANK": "0", "HVDLITE_SIZE": "1"}),
    ):
        ended = run(*options, "true", **environ)
        assert (ended.returncode, ended.stderr) == (0, "")


def test_a_dry_run_of_a_node_is_refused() -> None:
    ended = run("--dry-run", "true", **TRAINER)
    assert (ended.returncode, "one of several nodes" in ended.stderr) == (2, True)
