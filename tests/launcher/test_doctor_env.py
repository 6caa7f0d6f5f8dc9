"""``hvdrun doctor --env``: which engine started this process, by what, and what is missing or contradictory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.launcher.hvdrun import COMMAND, run
from tests.unit import engine_environments as recorded
from tests.unit.launcher.doctor.test_surroundings import HERE, KEY, TRAINER


def test_a_node_that_lacks_the_key_is_told_which_node_it_would_be_and_ends_with_1() -> None:
    ended = run("doctor", "--env", **TRAINER)
    assert ended.returncode == 1
    assert ended.stdout.startswith("hvdrun here would be node 1 of 3, as Kubeflow Trainer (")
    assert "says, and could not start: see below\n" in ended.stdout
    assert "problem: hvdrun would not start: nodes need a key" in ended.stdout
    assert ended.stdout.endswith("No job would start here as it was meant.\n")


def test_it_takes_the_options_of_a_node(tmp_path: Path) -> None:
    """As in the command of a pod, whose key is in a file."""
    (tmp_path / "key").write_text(KEY)
    words = ("doctor", "--env", "--nnodes", "2", "--master", "train-0.train")
    ended = run(*words, "--secret-file", str(tmp_path / "key"), JOB_COMPLETION_INDEX="1")
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines == [
        "hvdrun here would be node 1 of 2, as its options and JOB_COMPLETION_INDEX=1 say",
        "python here would start alone, as a job of one rank",
    ]
    ended = run(*words, JOB_COMPLETION_INDEX="2", HVDLITE_SECRET=KEY)
    assert ended.returncode == 1
    assert "hvdrun would not start: there is no node 2 among 2" in ended.stdout
    ended = run("doctor", "--nnodes", "2")
    assert ended.returncode == 2
    assert "options of nodes belong to --env" in ended.stderr


def test_the_process_that_set_the_variables_is_named_by_its_program_and_not_by_its_arguments() -> None:
    ended = run("doctor", "--env", **recorded.TORCHRUN)
    name = Path("/proc/self/comm").read_text().strip()
    assert f"    set by process {os.getpid()} ({name})\n" in ended.stdout


def test_alone_it_says_so() -> None:
    ended = run("doctor", "--env")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == (
        "hvdrun here would start ranks on this host only\npython here would start alone, as a job of one rank\n"
    )


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["text", "json"])
def test_no_key_is_printed_even_where_it_names_the_job(words: list[str]) -> None:
    environ = recorded.TORCH_DISTRIBUTED | HERE | {"MASTER_PORT": KEY, "HVDLITE_RUN_SECRET": KEY[::-1]}
    ended = run("doctor", "--env", *words, **environ)
    assert ended.returncode == 0, ended.stderr
    assert "MASTER_PORT" in ended.stdout
    for key in (KEY, KEY[::-1]):
        assert key not in ended.stdout + ended.stderr
    if words:
        assert json.loads(ended.stdout)["rank"] == 1


def test_problems_end_it_with_1() -> None:
    ended = run("doctor", "--env", **recorded.TORCH_DISTRIBUTED)
    assert ended.returncode == 1
    assert "problem: torch.distributed has started ranks on several hosts" in ended.stdout
    assert ended.stdout.endswith("init() would not join the job that was meant.\n")
    told = json.loads(run("doctor", "--env", "--json", **recorded.TORCH_DISTRIBUTED).stdout)
    assert (told["would_start"], told["engine"], told["rank"]) == (False, "torch.distributed", None)
    assert told["findings"][0]["weight"] == "problem"


def test_it_examines_no_hosts() -> None:
    ended = run("doctor", "--env", "-H", "a,b")
    assert ended.returncode == 2
    assert "leave -H and --hostfile out" in ended.stderr


def test_inside_a_job_of_hvdrun_every_rank_answers() -> None:
    ended = run("-np", "2", *COMMAND, "doctor", "--env")
    assert ended.returncode == 0, ended.stdout
    for rank in range(2):
        assert f"[{rank}]<stdout>:hvdrun: this process is rank {rank} of 2" in ended.stdout
        assert f"[{rank}]<stdout>:    the key: hvdrun has made it" in ended.stdout
