"""``hvdrun top`` beside a job that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hvdlite.launcher.cli import main
from hvdlite.launcher.monitor import folder
from tests.harness import FAKES
from tests.harness.patience import PATIENCE_S, until
from tests.launcher.hvdrun import read_until, run, started
from tests.launcher.test_terminal import on_terminal

_TRAINING = """
import sys, time
import numpy as np
import hvdlite as hvd
from pathlib import Path
hvd.init()
over = np.zeros(1)
while not over.any():
    hvd.grouped_allreduce([np.ones(1000, np.float32)] * 3, name="weights")
    over = hvd.allreduce(np.array([float(Path(sys.argv[1]).exists())]), name="is over")
    time.sleep(0.01)
sys.exit(3)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the sockets of jobs that the test starts."""
    (above := tmp_path / "run").mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(above))
    return above / "hvdlite"


@contextmanager
def _job(tmp_path: Path, size: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A job whose ranks have all finished a collective."""
    (script := tmp_path / "train.py").write_text(_TRAINING)
    with started("-np", str(size), *options, sys.executable, str(script), str(tmp_path / "over")) as hvdrun:

        def works() -> bool:
            shown = run("top", str(hvdrun.pid), "--once", "--json")
            return shown.returncode == 0 and all(row["last"] for row in json.loads(shown.stdout)["rows"])

        until(works)
        yield hvdrun


def test_one_view_has_every_rank_with_its_last_collective(tmp_path: Path) -> None:
    with _job(tmp_path, 3) as hvdrun:
        shown = run("top", str(hvdrun.pid), "--once")
        assert (shown.returncode, shown.stderr) == (0, "")
        heading, columns, *rows = shown.stdout.splitlines()
        assert heading.startswith(f"{hvdrun.pid}: {sys.executable}"[:60])
        assert "3 rank(s) on 1 host(s)" in heading
        assert columns.split()[:3] == ["rank", "host", "steps/s"]
        for rank, row in enumerate(rows[:3]):
            assert row.split()[:2] == [str(rank), "localhost"]
            assert "weights[0] +2, " in row or "is over, " in row
            assert " -  " not in row


def test_the_end_of_the_job_ends_it_and_its_code_is_said(tmp_path: Path) -> None:
    with _job(tmp_path, 2) as hvdrun:
        with started("top", str(hvdrun.pid)) as top:
            assert top.stdout is not None
            read_until(top.stdout.fileno(), lambda found: found.count(b"rank(s)") == 2)
            (tmp_path / "over").touch()
            _, error = top.communicate(timeout=PATIENCE_S)
            assert (top.returncode, error) == (0, b"hvdrun: the job has ended with exit code 3\n")
        assert hvdrun.wait(PATIENCE_S) == 3


def test_on_a_terminal_the_view_stays_in_place_until_q_is_typed(tmp_path: Path) -> None:
    with _job(tmp_path, 2) as hvdrun, on_terminal("top", str(hvdrun.pid), COLUMNS="100", LINES="30") as (top, terminal):
        shown = read_until(terminal, lambda found: found.count(b"last collective") == 2)
        assert b"\x1b[?1049h" in shown  # a screen of its own
        assert b"localhost" in shown
        os.write(terminal, b"xq")
        rest = read_until(terminal, lambda found: b"\x1b[?1049l" in found)
        assert b"hvdrun:" not in rest
        assert top.wait(PATIENCE_S) == 0


def test_ctrl_c_ends_it_too_and_leaves_the_job_alone(tmp_path: Path) -> None:
    with _job(tmp_path, 1) as hvdrun:
        with on_terminal("top", str(hvdrun.pid)) as (top, terminal):
            read_until(terminal, lambda found: b"localhost" in found)
            os.write(terminal, b"\x03")
            read_until(terminal, lambda found: b"\x1b[?1049l" in found)
            assert top.wait(PATIENCE_S) == 0
        assert hvdrun.poll() is None


def test_without_rich_there_are_lines_and_advice(tmp_path: Path) -> None:
    program = "import sys; sys.modules['rich'] = None; from hvdlite.launcher.cli import main; sys.exit(main())"
    with _job(tmp_path, 2) as hvdrun:
        without = [sys.executable, "-c", program, "top", str(hvdrun.pid)]
        shown = subprocess.run([*without, "--once"], capture_output=True, text=True, timeout=PATIENCE_S)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "last collective" in shown.stdout
        shown = subprocess.run([*without, "--svg", str(tmp_path / "top.svg")], capture_output=True, text=True)
        assert shown.returncode == 2
        assert "pip install 'hvdlite[observe]'" in shown.stderr


def test_a_terminal_that_can_only_append_gets_lines(tmp_path: Path) -> None:
    with _job(tmp_path, 1) as hvdrun, on_terminal("top", str(hvdrun.pid), TERM="dumb") as (top, terminal):
        shown = read_until(terminal, lambda found: found.count(b"last collective") == 2)
        assert b"\x1b" not in shown
        os.write(terminal, b"\x03")
        assert top.wait(PATIENCE_S) == 0


def test_ranks_of_other_hosts_are_there_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for ssh, whose hosts are this one."""
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    with _job(tmp_path, 3, "-H", "localhost:1,far:2") as hvdrun:
        view = json.loads(run("top", str(hvdrun.pid), "--once", "--json").stdout)
        rows, memory = view["rows"], [row["quantities"]["memory_bytes"] for row in view["rows"]]
        assert [(row["rank"], row["host"]) for row in rows] == [(0, "localhost"), (1, "far"), (2, "far")]
        assert all(nbytes > 1 << 20 for nbytes in memory)
        assert view["quantities"]["memory_bytes"] == sum(memory)
        assert all(row["cpu"] is not None for row in rows)
        assert len({row["pid"] for row in rows}) == 3


def test_a_picture_of_it_is_drawn(tmp_path: Path) -> None:
    with _job(tmp_path, 2) as hvdrun:
        assert run("top", str(hvdrun.pid), "--svg", str(tmp_path / "top.svg")).returncode == 0
        drawn = (tmp_path / "top.svg").read_text()
        assert drawn.startswith("<svg")
        assert drawn.count("localhost") >= 2  # one more if a rank was found to be slow, as on a busy machine
        assert "url(http" not in drawn
        missing = run("top", str(hvdrun.pid), "--svg", str(tmp_path / "no" / "top.svg"))
        assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)


def test_of_several_jobs_one_must_be_chosen(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(folder, "candidates", lambda environ: iter([place]))  # those of other tests are not there
    assert main(["top", "--once"]) == 2
    assert "no job of yours runs on this host" in capsys.readouterr().err
    sleep = ("-np", "1", "sleep", "600")
    with started(*sleep) as one:
        until(lambda: place.exists() and len(os.listdir(place)) == 1)
        assert main(["top", "--once"]) == 0
        shown = capsys.readouterr().out
        assert f"{one.pid}: sleep 600: 1 rank(s)" in shown
        assert "before init()" in shown
        with started(*sleep) as other:
            until(lambda: len(os.listdir(place)) == 2)
            assert main(["top", "--once"]) == 2
            error = capsys.readouterr().err
            assert "2 jobs run" in error
            listed = [f"{pid}: 1 rank(s), sleep 600" for pid in sorted(job.pid for job in (one, other))]
            assert error.splitlines()[:2] == listed
            assert error.splitlines()[2].startswith("hvdrun: 2 jobs run; give the process of one of those above, as in")
            assert main(["top", "1"]) == 2
            assert "no hvdrun of yours is process 1;" in capsys.readouterr().err
            for job in (one, other):
                job.terminate()
                assert job.wait(PATIENCE_S) == 143
