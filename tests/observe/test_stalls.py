"""hvdrun reports a stall once: who did not submit what, and where the threads of those ranks are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import FAKES
from tests.harness.patience import NEVER_SILENT, PATIENCE_S, until
from tests.launcher.hvdrun import COMMAND, read_until, run

_PROGRAM = """
import ctypes, os, signal, sys, threading, time
from pathlib import Path
import numpy as np
import hvdlite as hvd

def submit(name):
    hvd.allreduce(np.ones(3), name=name)

def load():
    time.sleep(600)

def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.01)

def step():
    {late}

hvd.init()
rank = hvd.rank()
submit("first")
threading.Thread(target=load, name="loader", daemon=True).start()
if {is_late}:
    step()
submit("weights")
{rest}
"""
_END = b"ends a job that waits for so long\n"


@contextmanager
def _job(
    folder: Path, ranks: int, late: str, is_late: str = "rank == 1", rest: str = "", *options: str, seconds: float = 1
) -> Iterator[subprocess.Popen[bytes]]:
    """A job that reports a stall after ``seconds``. Its stdin is a pipe that says nothing."""
    script = folder / "train.py"
    script.write_text(_PROGRAM.format(late=late, is_late=is_late, rest=rest))
    settings = {"HVDLITE_STALL_CHECK_TIME_SECONDS": str(seconds), **NEVER_SILENT}
    variables = [word for name, value in settings.items() for word in ("-x", f"{name}={value}")]
    process = subprocess.Popen(
        [*COMMAND, "-np", str(ranks), *variables, *options, sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _report(process: subprocess.Popen[bytes], end: bytes = _END) -> list[str]:
    """The lines of the next report, which has this end."""
    assert process.stderr is not None
    text = read_until(process.stderr.fileno(), lambda found: found.endswith(end)).decode()
    return text[text.index("hvdrun: the job has waited") :].splitlines()


def _calls(lines: list[str], head: str) -> list[tuple[str, str]]:
    """File and function of the calls below the line that begins with ``head``."""
    (index,) = (number for number, line in enumerate(lines) if line.startswith(head))
    calls = []
    for line in lines[index + 1 :]:
        if (match := re.fullmatch(r'    File "(.*)", line \d+, in (.*)', line)) is None:
            break
        calls.append((Path(match[1]).name, match[2]))
    return calls


_HERE = [("train.py", "step"), ("train.py", "<module>")]


@pytest.mark.parametrize(
    ("ranks", "late", "sleeps"),
    [(2, "time.sleep(600)", "sleeps in "), (3, "ctypes.PyDLL(None).sleep(600)", "sleeps in "), (4, "while 1: 0", "")],
)
def test_a_late_rank_is_named_with_its_stacks(tmp_path: Path, ranks: int, late: str, sleeps: str) -> None:
    with _job(tmp_path, ranks, late) as process:
        lines = _report(process)
    did = {2: "rank 0", 3: "ranks 0, 2", 4: "ranks 0, 2, 3"}[ranks]
    head = r"hvdrun: the job has waited for \d+ s, since \d\d:\d\d:\d\d: rank 1 on localhost \(process \d+\) "
    assert re.fullmatch(rf"{head}did not submit 'weights'; {did} did", lines[0])
    assert _calls(lines, f"  rank 1: the main thread {sleeps}") == _HERE
    if "PyDLL" not in late:  # else its name may not have been noted
        assert _calls(lines, "  rank 1: thread 'loader' ") == [("train.py", "load")]
    assert ("holds the GIL in native code" in "\n".join(lines)) == ("PyDLL" in late)
    assert "hvdlite-" not in "\n".join(lines)


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_is_late_with_a_known_tensor_is_named(tmp_path: Path, late: int) -> None:
    """The tensor is agreed on without rank 0, which has no reason of its own to look for it."""
    with _job(tmp_path, 2, "time.sleep(600)", f"submit('weights') or rank == {late}") as process:
        lines = _report(process)
    assert re.search(rf": rank {late} on localhost \(.*\) did not submit 'weights'; rank {1 - late} did$", lines[0])
    assert _calls(lines, f"  rank {late}: the main thread sleeps in ") == _HERE


def test_rank_0_is_named_too_if_it_runs_no_python(tmp_path: Path) -> None:
    """It finds the other ranks for which all wait, but does not know that they wait for itself."""
    with _job(tmp_path, 3, "ctypes.PyDLL(None).sleep(600)", "rank == 0") as process:
        lines = _report(process)
    who = r"no Python of rank 0 on localhost \(process \d+\) runs; ranks 1, 2 wait for 'weights'"
    assert re.fullmatch(rf"hvdrun: the job has waited for \d+ s, since \S*: {who}", lines[0])
    assert _calls(lines, "  rank 0: the main thread sleeps in ") == _HERE
    assert any("holds the GIL in native code" in line for line in lines)


def test_equal_stacks_are_shown_once(tmp_path: Path) -> None:
    with _job(tmp_path, 4, "time.sleep(600)", "rank > 0") as process:
        lines = _report(process)
    assert "ranks 1-3 did not submit 'weights'; rank 0 did" in lines[0]
    assert _calls(lines, "  ranks 1-3: the main thread sleeps") == _HERE
    assert _calls(lines, "  ranks 1-3: thread 'loader' sleeps") == [("train.py", "load")]
    assert sum("File" in line for line in lines) == 3


def test_ranks_that_wait_for_each_other_are_told_where(tmp_path: Path) -> None:
    late = "submit('ab'[rank]) if rank < 2 else time.sleep(600)"
    with _job(tmp_path, 3, late, "True", seconds=5) as process:  # in which all ranks come here, also on a busy machine
        text = "\n".join(_report(process))
    places = {
        rank: rf"rank {rank} for '{name}', which rank {1 - rank} did not submit \(it is at \S*/train.py:8, in submit\)"
        for rank, name in enumerate("ab")
    }
    assert re.search(rf"  ranks wait for each other: {places[0]}; {places[1]}\. Make each of these calls on all", text)
    assert _calls(text.splitlines(), "  rank 2: the main thread sleeps") == _HERE


def test_the_agents_of_other_hosts_are_asked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both hosts are this machine, with a stand-in for ssh."""
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SSH_LOG", str(tmp_path / "ssh.log"))
    hosts = "-H", "localhost:1,far:2"
    with _job(tmp_path, 3, "ctypes.PyDLL(None).sleep(600)", "rank == 2", "", *hosts) as process:
        lines = _report(process)
    assert re.search(r"rank 2 on far \(process \d+\) did not submit 'weights'; ranks 0, 1 did$", lines[0])
    assert re.fullmatch(r"  rank 2 on far, process \d+, holds the GIL in native code: no Python of it runs", lines[1])
    assert _calls(lines, "  rank 2: the main thread sleeps in ") == _HERE


def test_a_rank_whose_program_has_ended_tells_for_which_thread_it_waits(tmp_path: Path) -> None:
    """No rank waits for another: rank 0 for a thread of a pool, rank 1 after `shutdown`, and rank 2 has ended."""
    rest = """
if rank == 0:
    from concurrent.futures import ThreadPoolExecutor
    ThreadPoolExecutor(1, "pool").submit(load)
if rank == 1:
    hvd.shutdown()
    threading.Thread(target=load, name="uploader").start()
"""
    end = b"threading.Thread(daemon=True)\n"
    with _job(tmp_path, 3, "pass", "False", rest) as process:
        assert process.stderr is not None
        text = read_until(process.stderr.fileno(), lambda found: found.count(end) == 2).decode()
    _, *reports = text.split("hvdrun: the job has waited for ")
    for rank, report in enumerate(sorted(reports, key=lambda report: "rank 1" in report)):
        first, *lines = report.splitlines()
        who = rf"the program of rank {rank} on localhost \(process \d+\) has ended, and its process waits for thread"
        assert re.fullmatch(rf"\d+ s, since \S*: {who} '{('pool_0', 'uploader')[rank]}'", first)
        (call,) = _calls(lines, f"  rank {rank}: the main thread sleeps")[-1:]
        assert call[1] in ("_shutdown", "_python_exit")
        assert ("train.py", "load") in _calls(lines, f"  rank {rank}: thread '{('pool_0', 'uploader')[rank]}' sleeps")


def test_a_rank_that_reads_stdin_is_called_that(tmp_path: Path) -> None:
    with _job(tmp_path, 2, "sys.stdin.readline()", "rank == 1", "", "--stdin", "1") as process:
        lines = _report(process)
        assert any(re.fullmatch(r"  rank 1 .* waits for input: it reads stdin", line) for line in lines)
        assert process.stdin is not None
        process.stdin.write(b"go on\n")
        process.stdin.flush()
        assert process.wait(PATIENCE_S) == 0


def test_a_rank_that_is_stopped_is_called_that_and_asked_nothing(tmp_path: Path) -> None:
    with _job(tmp_path, 2, "os.kill(os.getpid(), signal.SIGSTOP)", seconds=4) as process:
        assert process.stderr is not None
        text = read_until(process.stderr.fileno(), lambda found: found.endswith(_END)).decode()
    assert text.count("is stopped (SIGSTOP, a debugger); ranks that need it wait") == 1
    assert re.search(r"\n  rank 1 on localhost, process \d+, has no stacks: it is stopped\n", text)


def test_each_stall_is_reported_once_while_other_output_goes_on(tmp_path: Path) -> None:
    """The job goes on only when the first report has come; ranks write all the time."""
    rest = "if rank == 0: wait_for('2')\nsubmit('second')"
    writing = "\n    ".join(
        [
            "threading.Thread(target=lambda: [print('x' * 60, flush=True) for _ in range(2000)], daemon=True).start()",
            "wait_for('1')",
        ]
    )
    with _job(tmp_path, 2, writing, "rank == 1", rest) as process:
        first = _report(process)
        (tmp_path / "1").touch()
        second = _report(process)
        (tmp_path / "2").touch()
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    assert "rank 1 on localhost" in first[0]
    assert "did not submit 'weights'; rank 0 did" in first[0]
    assert "rank 0 on localhost" in second[0]
    assert "did not submit 'second'; rank 1 did" in second[0]
    assert b"has waited" not in err
    assert set(out.splitlines()) == {b"[1]<stdout>:" + b"x" * 60}


def test_a_stall_that_ends_in_time_is_not_reported(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_PROGRAM.format(late="time.sleep(2)", is_late="rank == 1", rest=""))
    ended = run("-np", "2", "-x", f"HVDLITE_STALL_CHECK_TIME_SECONDS={PATIENCE_S}", sys.executable, str(script))
    assert ended.returncode == 0, ended.stderr
    assert "waited" not in ended.stderr


def test_a_job_that_ends_before_the_stacks_came_is_reported_too(tmp_path: Path) -> None:
    end = "-x", "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS=1.1"
    with _job(tmp_path, 2, "ctypes.PyDLL(None).sleep(600)", "rank == 1", "", *end) as process:
        _, told = process.communicate(timeout=PATIENCE_S)
    _, head, rest = told.decode().partition("did not submit 'weights'; rank 0 did\n")
    assert head
    assert rest.startswith("  rank 1")  # has no answer, or has ended, or tells where it was just before
    assert process.returncode != 0


def test_a_running_job_is_asked_for_its_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with _job(tmp_path, 3, "Path(f'late.{rank}').touch(); time.sleep(600)", "rank > 0", seconds=PATIENCE_S) as process:
        until(lambda: all((tmp_path / f"late.{rank}").exists() for rank in (1, 2)))
        shown = run("stacks", str(process.pid))
        some = run("stacks", str(process.pid), "--rank", "2", "--all")
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = [f"  {line}" for line in shown.stdout.splitlines()]
    assert _calls(lines, "  ranks 1, 2: the main thread sleeps") == _HERE
    assert _calls(lines, "  rank 0: the main thread sleeps")[1:] == [("train.py", "submit"), ("train.py", "<module>")]
    assert "hvdlite-" not in shown.stdout
    assert "rank 0" not in some.stdout
    assert "rank 2: thread 'hvdlite-recorder' " in some.stdout
