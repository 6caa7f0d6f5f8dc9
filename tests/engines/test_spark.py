"""Ranks in Spark's tasks: what Spark runs again, what it loses, what it is not asked for, and who may start at all."""

from __future__ import annotations

import functools
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import hvdlite.spark
from tests.engines.spark import needs_spark, spark_home
from tests.engines.starting import ROOT, outputs, start
from tests.harness.patience import LAST_RESORTS, PATIENCE_S, PROMPT_S
from tests.house.blocks import Block, runnable_blocks

pytestmark = needs_spark
AGAIN = "call it again, from your last checkpoint"
JOBS = str(Path(__file__).with_name("spark_jobs.py"))


@functools.cache
def ran() -> dict[str, dict[str, Any]] | Exception:
    """What came of the jobs of `spark_jobs`, by name."""
    try:
        with spark_home(), tempfile.TemporaryDirectory() as folder:
            out, _ = outputs(start([sys.executable, JOBS, folder], LAST_RESORTS))
    except Exception as error:  # a driver that fails does so once, and not for every test
        return error
    told = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {each["job"]: each for each in told}


def job(name: str) -> dict[str, Any]:
    jobs = ran()
    if isinstance(jobs, Exception):
        raise RuntimeError("the driver failed") from jobs
    return jobs[name]


@pytest.mark.parametrize("cause", [KeyboardInterrupt, OSError])
def test_ctrl_c_amid_a_call_of_py4j_is_ctrl_c(cause: type[BaseException]) -> None:
    """`ran` and the contract send it at a moment of their own, mostly between the calls."""
    from hvdlite.spark.stage import interruptible

    error = RuntimeError("Gateway must be connected to send cancel cmd.")
    error.__context__ = cause()
    with pytest.raises(cause if cause is KeyboardInterrupt else RuntimeError), interruptible():
        raise error


def test_a_stage_that_spark_runs_again_is_a_new_job_with_a_new_key() -> None:
    told = job("again")
    assert told.get("results") == [{"rank": rank, "total": 2.0} for rank in range(2)], told
    keys = {rank: [note["key"] for note in told["notes"][""] if note["rank"] == rank] for rank in range(2)}
    assert keys[0] == keys[1]  # of the first attempt and of the second
    assert len(set(keys[0])) == len(keys[0]) == 2


def test_a_lost_executor_ends_the_others_and_the_job_within_seconds() -> None:
    told = job("executor")
    assert (told["error"], told["rank"], told["alive"]) == ("WorkerFailed", 1, []), told
    assert told["text"].endswith("see 'dmesg' there, and lower the batch size or the ranks per host. Then " + AGAIN)
    assert "ExecutorLostFailure" in told["text"] or "its process ended" in told["text"]
    ((died,), (lost,)) = told["notes"][" dies"], told["notes"][" lost"]
    assert (lost["rank"], lost["lost"]) == (0, 1)
    assert lost["at"] < died["at"] + PROMPT_S  # Spark takes 120 s to notice silence
    assert told["ended"] < died["at"] + PROMPT_S


def test_functions_and_results_of_a_script_are_sent_by_value() -> None:
    assert job("agrees").get("results") == [3.0, 3.0]
    assert job("lambda").get("results") == [3.0, 3.0]


def test_a_process_that_was_a_rank_serves_ordinary_tasks_afterwards() -> None:
    assert job("ordinary").get("results") == [[]] * 8


def test_tasks_have_the_name_of_horovod_if_the_driver_has() -> None:
    told = job("as horovod")
    assert told.get("results") == [[0, []], [1, []]], told


def test_a_rank_that_falls_silent_ends_the_job_at_once() -> None:
    told = job("silent")
    assert (told["error"], told["rank"]) == ("WorkerFailed", 1), told
    assert re.match(rf"rank 1 on \S+ was lost: .* {AGAIN}$", told["text"])
    assert told["ended"] < max(note["at"] for note in told["notes"][""]) + PROMPT_S
    assert told["alive"] == []


def test_a_rank_that_failed_does_not_wait_for_those_that_do_not_notice() -> None:
    told = job("unnoticed")
    assert (told["error"], told["rank"], told["host"]) == ("FunctionFailed", 1, socket.gethostname()), told
    assert "OSError: the disk is full" in told["text"]
    assert told["ended"] < max(note["at"] for note in told["notes"][""]) + PROMPT_S
    assert told["alive"] == []


def test_ctrl_c_ends_all_ranks_and_leaves_the_context_as_it_was() -> None:
    told = job("waits")
    assert told["error"] == "KeyboardInterrupt", told
    assert told["alive"] == []
    assert job("after").get("results") == [3.0, 3.0]


def test_more_ranks_than_slots_are_refused_in_a_sentence() -> None:
    told = job("too many")
    assert told["error"] == "BadHostSpec", told
    assert "3 ranks need as many slots at the same time, and Spark has 2 after 1 s; lower num_proc" in told["text"]


def test_slots_that_other_jobs_hold_are_not_waited_for_for_ever() -> None:
    told = job("taken")
    assert told["error"] == "LaunchError", told
    assert "only 0 of 2 ranks could start within 1 s: other jobs hold the slots" in told["text"]
    assert job("lambda").get("results") == [3.0, 3.0]  # afterwards


@pytest.mark.parametrize("name", ["spark.speculation", "spark.dynamicAllocation.enabled"])
def test_settings_that_exclude_it_are_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkConf, SparkContext

    class Context:
        def getConf(self) -> SparkConf:
            return SparkConf(loadDefaults=False, _jvm=None, _jconf=None).set(name, "true")

    monkeypatch.setattr(SparkContext, "_active_spark_context", Context())
    with pytest.raises(ValueError, match=rf"^{name}=true excludes hvdlite\.spark\.run\(\): .*; set it to false$"):
        hvdlite.spark.run(print)


def test_without_a_context_it_says_where_to_call_it() -> None:
    with pytest.raises(ValueError, match="there is no SparkContext in this process: call hvdlite"):
        hvdlite.spark.run(print)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"use_mpi": True}, "use_mpi is not supported: hvdlite.spark has no MPI"),
        ({"nics": ["eth0"]}, "nics is not supported"),
        ({"stdout": sys.stdout}, "stdout is not supported: .* the logs of Spark's executors"),
        ({"args": 10}, r"args must be a list or tuple of the function's arguments, got int; one is \(argument,\)"),
        ({"args": "ten"}, "args must be a list or tuple .* got str"),
        ({"kwargs": ["ten"]}, "kwargs must be a dict of the function's named arguments, got list"),
        ({"num_proc": 0}, "num_proc must be the number of ranks, at least 1; got 0"),
        ({"fn": 3}, "fn must be a function, got int"),
    ],
)
def test_arguments_that_cannot_be_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        hvdlite.spark.run(**{"fn": print, **given})


class Gathering:
    """What a task sees of its stage: two tasks on two hosts, of which it is the first."""

    def __init__(self, answers: list[list[str]]) -> None:
        self._answers = answers

    def partitionId(self) -> int:
        return 0

    def getTaskInfos(self) -> list[Any]:
        from pyspark.taskcontext import BarrierTaskInfo

        return [BarrierTaskInfo("192.0.2.1:40001"), BarrierTaskInfo("192.0.2.2:40002")]

    def allGather(self, message: str = "") -> list[str]:
        if not self._answers:
            here, _there = socket.socketpair()
            here.recv(1)
        return [message, *self._answers.pop(0)]


def outcome_of(context: Gathering, timeout_s: float) -> Any:
    from hvdlite.spark.task import Call, _outcome

    return _outcome(Call(None, print, (), {}, {}, timeout_s), context)


def test_a_task_that_never_says_where_it_runs_is_not_waited_for() -> None:
    with pytest.raises(
        hvdlite.HorovodInternalError, match=r"not all 2 tasks .* after 0\.1 s; is one of their processes stopped"
    ):
        outcome_of(Gathering([]), 0.1)


def test_an_address_at_which_rank_0_cannot_listen_is_told_to_all() -> None:
    outcome = outcome_of(Gathering([['["kernel", "second"]'], [""]]), PATIENCE_S)
    assert (outcome.rank, outcome.host, outcome.follows) == (0, socket.gethostname(), None)
    assert "cannot listen at 192.0.2.1, the address by which that node is known" in outcome.failure


def test_without_pyspark_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['pyspark'] = None\nimport hvdlite.spark; hvdlite.spark.run(print)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert "ImportError: hvdlite.spark.run() needs PySpark; install it: pip install 'hvdlite[spark]'" in ended.stderr


@pytest.mark.parametrize("block", list(runnable_blocks(ROOT / "docs/clusters.md", framework="spark")), ids=str)
def test_the_block_of_the_page_runs(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(block.text)
    with spark_home():
        out, err = outputs(start([sys.executable, str(script)], {"TMPDIR": str(tmp_path), **os.environ}))
    assert out.splitlines() == [f"{rank} [1.0, 2.0, 3.0]" for rank in range(2)], err
