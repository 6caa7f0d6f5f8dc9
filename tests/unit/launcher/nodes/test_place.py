"""Which node this is: options, and the variables of what starts one process on each node."""

from __future__ import annotations

from typing import Any

import pytest

from hvdlite.launcher.nodes.place import DEFAULT_PORT, Master, NodePlace, parse_master, place_of

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
