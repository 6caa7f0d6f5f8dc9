"""Which node this is: options, and the variables of what starts one process on each node."""

from __future__ import annotations

import os
from typing import Any

import pytest

from hvdlite.launcher.nodes.place import DEFAULT_PORT, Master, NodePlace, parse_master, place_of
from tests.launcher.hvdrun import run

TRAINER = {
    "PET_NODE_RANK": "1",
    "PET_NNODES": "3",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29500",
    "PET_NPROC_PER_NODE": "4",
}
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
}
MASTER = Master("a", 5)


@pytest.mark.parametrize(
    ("text", "master"),
    [
        ("a", Master("a", DEFAULT_PORT)),
        ("train-0.train:5", Master("train-0.train", 5)),
        ("10.0.0.1:5", Master("10.0.0.1", 5)),
        ("[fe80::1%eth0]:5", Master("fe80::1%eth0", 5)),
        ("[::1]", Master("::1", DEFAULT_PORT)),
    ],
)
def test_node_0_is_named_by_a_host_and_a_port(text: str, master: Master) -> None:
    assert parse_master(text) == master


@pytest.mark.parametrize("text", ["", "a:", "a:0", "a:65536", "::1", "a b", "a:b", "http://a"])
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--master"):
        parse_master(text)


def test_nothing_says_that_this_is_a_node() -> None:
    assert place_of(None, None, None, {}) is None
    assert place_of(None, None, None, {"JOB_COMPLETION_INDEX": "1"}) is None
    for name in ("PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "PET_MASTER_PORT"):
        assert place_of(None, None, None, {**TRAINER, name: ""}) is None


@pytest.mark.parametrize(
    ("options", "environ", "place"),
    [
        ((1, 2, MASTER), {}, NodePlace(1, 2, MASTER)),
        ((None, 2, MASTER), {"JOB_COMPLETION_INDEX": "1"}, NodePlace(1, 2, MASTER)),
        ((0, 2, MASTER), {"JOB_COMPLETION_INDEX": "1"}, NodePlace(0, 2, MASTER)),
        ((None, None, None), TRAINER, NodePlace(1, 3, Master("job-node-0-0.job", 29500), 4)),
        ((None, None, MASTER), TRAINER, NodePlace(1, 3, MASTER, 4)),
        ((None, None, None), SKYPILOT, NodePlace(1, 2, Master("10.0.0.1", DEFAULT_PORT), 8)),
        (
            (None, None, None),
            {**SKYPILOT, "SKYPILOT_NODE_IPS": "fd::1 fd::2"},
            NodePlace(1, 2, Master("fd::1", DEFAULT_PORT), 8),
        ),
    ],
)
def test_options_come_before_the_environment(options: Any, environ: dict[str, str], place: NodePlace) -> None:
    assert place_of(*options, environ) == place


@pytest.mark.parametrize(("text", "slots"), [("auto", "auto"), ("gpu", "auto"), ("cpu", None), ("", None), ("2", 2)])
def test_slots_of_the_trainer(text: str, slots: object) -> None:
    place = place_of(None, None, None, {**TRAINER, "PET_NPROC_PER_NODE": text})
    assert place is not None
    assert place.slots == slots


def test_skypilot_without_gpus_says_nothing_about_slots() -> None:
    place = place_of(None, None, None, {**SKYPILOT, "SKYPILOT_NUM_GPUS_PER_NODE": "0"})
    assert place is not None
    assert place.slots is None


@pytest.mark.parametrize(
    ("options", "environ", "words"),
    [
        ((1, None, None), {}, "--nnodes, how many there are and --master"),
        ((None, 2, MASTER), {}, "--node-rank, the number of this node from 0"),
        ((2, 2, MASTER), {}, "no node 2 among 2"),
        ((None, 2, MASTER), {"JOB_COMPLETION_INDEX": "two"}, "JOB_COMPLETION_INDEX='two' must be a whole number"),
        ((None, None, None), {**TRAINER, "PET_NNODES": "1:4"}, "the same nodes from start to end"),
        ((None, None, None), {**TRAINER, "PET_MASTER_PORT": "http"}, "PET_MASTER_PORT='http'"),
        ((None, None, None), {**TRAINER, "PET_NPROC_PER_NODE": "many"}, "PET_NPROC_PER_NODE='many'"),
        ((None, None, None), {**TRAINER, "PET_NODE_RANK": "3"}, "no node 3 among 3"),
        ((None, None, None), {**SKYPILOT, "SKYPILOT_NODE_IPS": " \n"}, "SKYPILOT_NODE_IPS"),
        ((None, None, None), {**TRAINER, "PET_NNODES": "0"}, "a job has from 1 to"),
    ],
)
def test_what_is_missing_or_cannot_be_is_named(options: Any, environ: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        place_of(*options, environ)
    assert words in str(caught.value)


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
