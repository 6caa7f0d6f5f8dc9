"""Jobs of a Slurm allocation, whose nodes are reached through a stand-in for srun. All are this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.harness import FAKES
from tests.harness.patience import PATIENCE_S
from tests.hosts.test_over_ssh import described
from tests.launcher.hvdrun import COMMAND, read_until, run, started, still_alive
from tests.unit.launcher.where.test_slurm import BATCH, STEP

DESCRIBE = (sys.executable, "-S", "-c", "import json, os; print(json.dumps({**os.environ, 'cwd': os.getcwd()}))")


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The arguments of every srun of this test, and what it read; the test itself is in a batch script."""
    for name, value in BATCH.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{FAKES}:{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_SRUN_LOG", str(tmp_path / "srun.log"))
    return tmp_path / "srun.log"


def hosts_of(ended: subprocess.CompletedProcess[str]) -> list[str]:
    return [rank["FAKE_HOST"] for rank in described(ended).values()]


def test_hosts_and_slots_are_those_of_the_job(log: Path) -> None:
    assert hosts_of(run(*DESCRIBE)) == ["n1", "n1", "n2", "n2"]
    assert hosts_of(run("-np", "3", *DESCRIBE)) == ["n1", "n1", "n2"]
    assert hosts_of(run("-ppn", "1", *DESCRIBE)) == ["n1", "n2"]
    assert log.read_text().count("--overlap") == 6
    too_many = run("-np", "5", *DESCRIBE)
    assert too_many.returncode == 2
    assert "5 ranks do not fit into the 4 slots of n1:2,n2:2, one for each task" in too_many.stderr
    assert "with --nodes=2 --ntasks-per-node=3 --cpus-per-task=1. See" in too_many.stderr


def test_more_ranks_than_tasks_start_on_this_node_where_that_is_asked_for(log: Path) -> None:
    one = {"SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1"}
    refused = run("-np", "4", *DESCRIBE, **one)
    assert refused.returncode == 2
    assert refused.stderr.endswith("or start them on this node anyway with -H localhost:4. See 'hvdrun --help'.\n")
    assert len(described(run("-H", "localhost:4", *DESCRIBE, **one))) == 4
    assert not log.exists()


def test_hosts_that_are_named_are_not_those_of_the_job(log: Path) -> None:
    ended = described(run("-H", "localhost:1,far:1", *DESCRIBE))
    assert [rank.get("FAKE_HOST") for rank in ended.values()] == [None, "far"]
    assert not log.exists()


def test_ranks_have_the_scripts_environment_and_no_steps(log: Path) -> None:
    first, *_, last = described(
        run("-x", "NAMED", *DESCRIBE, NAMED="a 'b'", OTHER="exported", SLURM_LABELIO="1")
    ).values()
    for rank in (first, last):
        assert (rank["NAMED"], rank["OTHER"]) == ("a 'b'", "exported")
        assert (rank["SLURM_JOB_ID"], rank["SLURM_CPUS_PER_TASK"]) == ("71", "2")
        assert not {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_LABELIO"} & rank.keys()
        assert rank["cwd"] == os.getcwd()
    assert (first["SLURMD_NODENAME"], last["SLURMD_NODENAME"]) == ("n1", "n2")
    assert first["HVDLITE_SECRET"] == last["HVDLITE_SECRET"]
    said = log.read_text()
    assert first["HVDLITE_SECRET"] not in said
    assert "SLURM_NTASKS" not in said  # srun would start as many agents
    assert "SLURM_LABELIO" not in said
    assert "SLURM_JOB_ID=71" in said


def test_a_step_of_one_task_may_start_a_job_and_one_of_several_may_not() -> None:
    step = {name: value for name, value in STEP.items() if name != "PATH"}
    assert hosts_of(run(*DESCRIBE, **step)) == ["n1", "n1", "n2", "n2"]
    refused = run("-np", "2", *DESCRIBE, **{**step, "SLURM_STEP_NUM_TASKS": "4"})
    assert refused.returncode == 2
    assert "srun has started hvdrun 4 times" in refused.stderr
    assert hosts_of(run("-H", "far:1", *DESCRIBE, **{**step, "SLURM_STEP_NUM_TASKS": "4"})) == ["far"]


def test_a_rank_that_starts_a_job_starts_it_here() -> None:
    inner = f"{shlex.join(COMMAND)} -np 1 sh -c 'echo $HVDLITE_HOSTNAME'"
    ended = run("-np", "1", "sh", "-c", inner)
    assert ended.stdout == "[0]<stdout>:[0]<stdout>:localhost\n", ended.stderr


def test_dry_run_shows_the_lines() -> None:
    shown = run("--dry-run", *DESCRIBE).stdout
    assert "0  n1" in shown
    for node in ("n1", "n2"):
        assert f"srun --jobid=71 --nodelist={node} --overlap --nodes=1 --ntasks=1 " in shown


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ("ended", "cannot start on ended: srun: error: Unable to create step for job 71: Job/step already completing"),
        ("broken", "cannot start on broken: srun ended with code 2: slurmstepd: error: something else"),
    ],
)
def test_why_an_agent_did_not_start(node: str, said: str) -> None:
    ended = run(*DESCRIBE, SLURM_JOB_NODELIST=f"n1,{node}")
    assert ended.returncode == 1
    assert said in ended.stderr


def test_what_srun_says_is_shown_but_for_what_means_nothing() -> None:
    ended = run(*DESCRIBE, SLURM_JOB_NODELIST="plain,chatty")
    assert ended.returncode == 0
    assert ended.stderr == "hvdrun: chatty: srun: a word to the user\n"


def test_no_srun_and_several_nodes() -> None:
    ended = run(*DESCRIBE, PATH=f"{os.path.dirname(sys.executable)}:/nowhere")
    assert ended.returncode == 2
    assert "agents on n1, n2 are started by srun, which is not on PATH" in ended.stderr


def test_doctor_examines_the_nodes_of_the_job() -> None:
    shown = run("doctor", "--json").stdout
    assert list(json.loads(shown)["hosts"]) == ["n1", "n2"]


# A rank that counts the signals it gets and ends at the first SIGTERM, but not at once: a second one would be counted.
COUNTS = """
import os, signal, time
count = 0
def take(*_):
    global count
    count += 1
signal.signal(signal.SIGTERM, take)
os.write(1, b"ready\\n")
while not count:
    time.sleep(0.01)
deadline = time.monotonic() + 1.5
while time.monotonic() < deadline:
    time.sleep(0.01)
os.write(1, b"got %d\\n" % count)
"""


def steps(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """What Slurm would signal: all processes below hvdrun."""
    return psutil.Process(process.pid).children(recursive=True)


def test_a_rank_gets_a_schedulers_sigterm_once_although_hvdrun_gets_it_too() -> None:
    with started(sys.executable, "-S", "-c", COUNTS) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process.stdout.fileno(), lambda found: found.count(b"ready") == 4)
        process.terminate()
        for each in steps(process):
            each.terminate()
        code = process.wait(PATIENCE_S)
        out, err = process.stdout.read().decode(), process.stderr.read().decode()
    assert code == 128 + signal.SIGTERM, err
    assert out.count("got 1") == 4, out
    assert "ending 4 rank(s)" in err


@pytest.mark.parametrize("who", ["the steps", "hvdrun"])
def test_a_sigterm_to_one_side_ends_the_job_too(who: str) -> None:
    with started(sys.executable, "-S", "-c", COUNTS) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process.stdout.fileno(), lambda found: found.count(b"ready") == 4)
        for each in steps(process) if who == "the steps" else [psutil.Process(process.pid)]:
            each.terminate()
        code = process.wait(PATIENCE_S)
        out, err = process.stdout.read().decode(), process.stderr.read().decode()
    assert code == 128 + signal.SIGTERM, err
    assert out.count("got 1") == 4, out
    assert re.search(r"hvdrun: SIGTERM(?: on n[12])?: ending 4 rank\(s\)", err)


def test_announcements_do_not_end_agents_and_hvdrun_passes_its_own_on() -> None:
    program = """
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"announced\\n"))
signal.signal(signal.SIGTERM, lambda *_: exit(0))
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""
    with started(sys.executable, "-S", "-c", program) as process:
        assert process.stdout is not None
        read_until(process.stdout.fileno(), lambda found: found.count(b"ready") == 4)
        for each in steps(process):
            each.send_signal(signal.SIGUSR1)
        read_until(process.stdout.fileno(), lambda found: found.count(b"announced") == 4)
        process.send_signal(signal.SIGUSR1)
        read_until(process.stdout.fileno(), lambda found: found.count(b"announced") == 4)
        process.terminate()
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM


def started_by_slurm(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """What Slurm signals where it finds processes by control groups: those that it has started itself."""
    return psutil.Process(process.pid).children()


def test_signals_to_agents_alone_reach_each_rank_once() -> None:
    with started(sys.executable, "-S", "-c", COUNTS.replace("SIGTERM", "SIGUSR1")) as process:
        assert process.stdout is not None
        read_until(process.stdout.fileno(), lambda found: found.count(b"ready") == 4)
        for each in started_by_slurm(process):
            each.send_signal(signal.SIGUSR1)
        assert process.wait(PATIENCE_S) == 0
        assert process.stdout.read().count(b"got 1") == 4
    with started(sys.executable, "-S", "-c", COUNTS) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process.stdout.fileno(), lambda found: found.count(b"ready") == 4)
        for each in started_by_slurm(process):
            each.terminate()
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        assert process.stdout.read().count(b"got 1") == 4
        assert re.search(r"hvdrun: SIGTERM on n[12]: ending 4 rank\(s\)", process.stderr.read().decode())


def test_a_schedulers_sigterm_that_comes_after_the_end_of_hvdrun_is_no_second_one(tmp_path: Path) -> None:
    """Agents hear the end of hvdrun first, and then end ranks by themselves unless the scheduler does."""
    program = (
        COUNTS.replace("+ 1.5", "+ 4") + "open(os.environ['PLACE'] + os.environ['HVDLITE_RANK'], 'x').write(str(count))"
    )
    with started("--grace", "60", "-x", f"PLACE={tmp_path}/saved-", sys.executable, "-S", "-c", program) as process:
        assert process.stdout is not None
        read_until(process.stdout.fileno(), lambda found: found.count(b"ready") == 4)
        pids = [each.pid for each in steps(process)]
        agents = started_by_slurm(process)
        process.kill()
        for each in agents:
            each.terminate()
        assert still_alive(pids, PATIENCE_S) == []
    assert [(tmp_path / f"saved-{rank}").read_text() for rank in range(4)] == ["1"] * 4


@pytest.mark.parametrize("whom", ["all", "agents alone"])
def test_ranks_keep_their_grace_time_if_hvdrun_dies_after_a_schedulers_sigterm(tmp_path: Path, whom: str) -> None:
    """As it does in a script without exec: longer than agents wait for ranks that have lost it."""
    slow = (
        COUNTS.replace("+ 1.5", "+ 4") + "open(os.environ['PLACE'] + os.environ['HVDLITE_RANK'], 'x').write(str(count))"
    )
    with started("--grace", "60", "-x", f"PLACE={tmp_path}/saved-", sys.executable, "-S", "-c", slow) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process.stdout.fileno(), lambda found: found.count(b"ready") == 4)
        pids = [each.pid for each in steps(process)]
        for each in steps(process) if whom == "all" else started_by_slurm(process):
            each.terminate()
        read_until(process.stderr.fileno(), lambda found: b"ending 4 rank(s)" in found)
        process.kill()
        assert still_alive(pids, PATIENCE_S) == []
    assert [(tmp_path / f"saved-{rank}").read_text() for rank in range(4)] == ["1"] * 4


def test_killing_hvdrun_leaves_nobody() -> None:
    with started("sh", "-c", "echo ready; exec sleep 600") as process:
        assert process.stdout is not None
        read_until(process.stdout.fileno(), lambda found: found.count(b"ready") == 4)
        pids = [each.pid for each in steps(process)]
        process.kill()
        assert still_alive(pids, PATIENCE_S) == []
