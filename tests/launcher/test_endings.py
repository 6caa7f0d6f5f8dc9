"""Ends of jobs: failures, signals and SIGKILL; the messages, the exit codes, and that no process is left."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import COMMAND, pids_in, read_until, run, started, still_alive

# A worker with a child in its group and one that left it, both deaf to SIGTERM.
FAMILY = """
echo $$ > {folder}/pid.$RANK
sh -c 'trap "" TERM; echo $$ > {folder}/pid.$RANK.child; while :; do sleep 600; done' &
setsid sh -c 'trap "" TERM; echo $$ > {folder}/pid.$RANK.escaped; while :; do sleep 600; done' &
while [ $(cat {folder}/* | wc -l) -lt $((3 * SIZE_OF_JOB)) ]; do sleep 0.05; done
echo ready
{then}
"""


def family(folder: Path, size: int, then: str = "wait") -> tuple[str, ...]:
    program = FAMILY.format(folder=folder, then=then).replace("SIZE_OF_JOB", str(size))
    return ("-np", str(size), "sh", "-c", program)


def wait_for_ready(process: subprocess.Popen[bytes], size: int) -> None:
    assert process.stdout is not None
    read_until(process.stdout.fileno(), lambda found: found.count(b"ready\n") == size)


def agent_of(process: subprocess.Popen[bytes]) -> int:
    (guard,) = psutil.Process(process.pid).children()
    (agent,) = guard.children()
    return int(agent.pid)


def test_the_first_failing_rank_decides_the_code_and_has_the_box(tmp_path: Path) -> None:
    program = "[ $RANK = 1 ] || { trap 'seq 101 140 >&2; exit 3' TERM; sleep 600 & wait; }; seq 1 30 >&2; exit 7"
    ended = run("-np", "3", "--output-filename", str(tmp_path), "sh", "-c", program)
    assert (ended.returncode, ended.stdout) == (7, "")
    box = [line for line in ended.stderr.splitlines() if line.startswith(("+", "|"))]
    assert "rank 1 on localhost ended with code 7" in box[0]
    assert [line.split()[-1] for line in box if line.startswith("|   ")] == [str(n) for n in range(11, 31)]
    assert f"| its log: {tmp_path}/rank.1/stderr" in box
    assert sum("hvdrun" in line for line in box) == 1
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("name", "hint"), [("KILL", "out of memory"), ("SEGV", "native code")])
def test_a_rank_ended_by_a_signal_gives_128_and_its_number(name: str, hint: str) -> None:
    ended = run("-np", "2", "sh", "-c", f"[ $RANK = 0 ] && kill -{name} $$; sleep 600")
    number = signal.Signals[f"SIG{name}"]
    assert ended.returncode == 128 + number
    assert f"rank 0 on localhost was ended by signal {number.value} (SIG{name})" in ended.stderr
    assert hint in ended.stderr


def test_a_program_that_cannot_be_executed_is_one_failure(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("no first line\n")
    program.chmod(0o755)
    ended = run("-np", "2", str(program))
    assert ended.returncode == 1
    assert f"could not be started: Exec format error: {program}; its first line must name" in ended.stderr


def test_a_failure_ends_grandchildren_too_even_deaf_ones(tmp_path: Path) -> None:
    ended = run(*family(tmp_path, 2, then="[ $RANK = 1 ] && exit 9; wait"))
    assert ended.returncode == 9
    assert len(pids_in(tmp_path)) == 6
    assert still_alive(pids_in(tmp_path), within_s=0.0) == []


def test_what_is_left_after_success_is_ended(tmp_path: Path) -> None:
    assert run("-np", "1", "sh", "-c", f"setsid sleep 600 & echo $! > {tmp_path}/pid.0; exit 0").returncode == 0
    assert still_alive(pids_in(tmp_path), within_s=0.0) == []


def test_a_program_behind_a_shell_has_its_five_seconds_too(tmp_path: Path) -> None:
    # The shell dies of SIGTERM at once; what it started needs a second to save its work.
    program = tmp_path / "program.py"
    program.write_text(
        f"import signal, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), open('{tmp_path}/saved', 'w'), exit()))\n"
        f"print('ready', flush=True)\n"
        f"time.sleep(600)\n"
    )
    command = shlex.join([sys.executable, "-S", str(program)])
    with started("-np", "1", "sh", "-c", f"{command}; true") as process:
        wait_for_ready(process, 1)
        process.terminate()
        assert process.wait(PATIENCE_S) == 143
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_hvdrun_ends_the_job_politely(tmp_path: Path, signum: signal.Signals, code: int) -> None:
    asked = "INT" if signum == signal.SIGINT else "TERM"
    program = f"trap 'echo saved > {tmp_path}/saved.$RANK; exit 0' {asked}; echo ready; sleep 600 & wait"
    with started("-np", "2", "sh", "-c", program) as process:
        wait_for_ready(process, 2)
        process.send_signal(signum)
        assert process.wait(PATIENCE_S) == code
        assert process.stderr is not None
        said = process.stderr.read().decode()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved.0", "saved.1"]
    assert said.count("\n") == 1
    assert signum.name in said


def test_ranks_that_ignore_sigterm_are_killed_after_five_seconds() -> None:
    with started("-np", "1", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 600; done") as process:
        wait_for_ready(process, 1)
        begun = time.monotonic()
        process.terminate()
        assert process.wait(PATIENCE_S) == 143
        assert time.monotonic() - begun > 4.5


def test_ranks_get_as_long_after_sigterm_as_the_user_says() -> None:
    """With no time at all they are killed; hvdrun does not wait for a long time to be over if they have ended."""
    deaf, obedient = "trap '' TERM; echo ready; while :; do sleep 600; done", "echo ready; exec sleep 600"
    for grace, program in (("0", deaf), (str(2 * PATIENCE_S), obedient)):
        with started("--grace", grace, "-np", "1", "sh", "-c", program) as process:
            wait_for_ready(process, 1)
            process.terminate()
            assert process.wait(PATIENCE_S) == 143


def test_a_second_signal_kills_at_once(tmp_path: Path) -> None:
    with started(*family(tmp_path, 2)) as process:
        wait_for_ready(process, 2)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        read_until(process.stderr.fileno(), lambda found: b"once more" in found)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    assert still_alive(pids_in(tmp_path), within_s=0.0) == []


def test_a_signal_that_hvdrun_ignores_stays_ignored() -> None:
    # As nohup does it.
    program = "echo ready; sleep 1; echo done"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with started("-np", "1", "sh", "-c", program) as process:
            wait_for_ready(process, 1)
            process.send_signal(signal.SIGHUP)
            assert process.wait(PATIENCE_S) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_killing_hvdrun_leaves_nobody(tmp_path: Path) -> None:
    with started(*family(tmp_path, 2)) as process:
        wait_for_ready(process, 2)
        pids = [*pids_in(tmp_path), agent_of(process)]
        assert len(pids) == 7
        process.kill()
        assert still_alive(pids, within_s=PATIENCE_S) == []


def test_killing_the_agent_ends_all_below_and_the_job_with_an_explanation(tmp_path: Path) -> None:
    with started(*family(tmp_path, 2)) as process:
        wait_for_ready(process, 2)
        os.kill(agent_of(process), signal.SIGKILL)
        assert process.wait(PATIENCE_S) == 1
        assert process.stderr is not None
        assert "the process that started it died" in process.stderr.read().decode()
    assert still_alive(pids_in(tmp_path), within_s=PATIENCE_S) == []


@pytest.mark.parametrize(
    ("whom", "signum", "told"),
    [("guard", signal.SIGKILL, "whose guard was killed"), ("agent", signal.SIGTERM, "which got SIGTERM")],
)
def test_ending_an_agent_or_its_guard_ends_the_job_and_is_not_blamed_on_a_rank(
    tmp_path: Path, whom: str, signum: signal.Signals, told: str
) -> None:
    with started(*family(tmp_path, 1)) as process:
        wait_for_ready(process, 1)
        agent = agent_of(process)
        (guard,) = psutil.Process(process.pid).children()
        os.kill(guard.pid if whom == "guard" else agent, signum)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        assert process.stderr is not None
        shown = process.stderr.read().decode()
        assert f"rank 0 on localhost was ended by its agent, {told}" in shown
    assert still_alive([*pids_in(tmp_path), agent], within_s=PATIENCE_S) == []


def test_a_stopped_agent_does_not_keep_hvdrun(tmp_path: Path) -> None:
    with started("-np", "1", "sh", "-c", f"echo $$ > {tmp_path}/pid.0; echo ready; sleep 600") as process:
        wait_for_ready(process, 1)
        os.kill(agent_of(process), signal.SIGSTOP)
        process.terminate()
        assert process.stderr is not None
        read_until(process.stderr.fileno(), lambda found: b"once more" in found)
        process.terminate()
        assert process.wait(PATIENCE_S) == 143
    assert still_alive(pids_in(tmp_path), within_s=PATIENCE_S) == []


@pytest.mark.parametrize("limit", [10, 14, 18], ids=["start", "hvdrun", "agent"])
def test_no_descriptors_left_is_one_line_or_a_box_about_the_rank(limit: int) -> None:
    command = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *COMMAND, "-np", "2", "true"]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 1
    first, *rest = ended.stderr.splitlines()
    assert "Too many open files" in first
    assert "ulimit -n" in first
    assert [line for line in rest if not line.startswith("+---")] == []


def test_the_box_shows_the_frame_that_crashed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import ctypes, numpy, threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "def deep(n):\n    deep(n - 1) if n else ctypes.string_at(0)\n"
        "deep(25)\n"
    )
    ended = run("-np", "1", sys.executable, str(script))
    assert ended.returncode == 139, ended.stderr
    box = ended.stderr[ended.stderr.index("+-- hvdrun") :]
    assert "| where it crashed:\n|   Fatal Python error: Segmentation fault\n|   Current thread" in box
    assert f'|     File "{script}", line 4 in deep\n' in box
    assert "| hint: a crash in native code\n" in box
    assert "Extension modules" not in box
