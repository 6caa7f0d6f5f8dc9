"""Output of hvdrun that needs no job: dry runs, tables of settings, and the box about a failure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hvdlite.launcher.cli import main
from hvdlite.launcher.decisions.endings import NODE_BROKE, NODE_LEFT
from hvdlite.launcher.decisions.supervisor import Failure
from hvdlite.launcher.screen.texts import describe_failure
from hvdlite.settings import table
from hvdlite.version import __version__


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"hvdrun {__version__}\n"


def test_a_dry_run_shows_the_plan_and_hides_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-np4", "-H", "localhost:8", "-x", "GREETING=hello there", "--dry-run", "echo", "a b"]) == 0
    shown = capsys.readouterr().out
    assert "4 rank(s) on 1 host(s)" in shown
    assert "     3  localhost                      3/4       0/1" in shown
    assert "  HVDLITE_SECRET=(hidden)" in shown
    assert "  GREETING='hello there'" in shown
    assert "  HVDLITE_RANK=0 1 2 3" in shown
    assert "  echo 'a b'" in shown


def test_settings_shows_every_row_and_what_was_changed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2.5")
    monkeypatch.setenv("HVDLITE_SECRET", "f00d" * 16)
    assert main(["--settings"]) == 0
    shown = capsys.readouterr().out
    assert all(f"HVDLITE_{spec.name.upper()}" in shown and spec.meaning in shown for spec in table())
    assert "HVDLITE_CYCLE_TIME or HOROVOD_CYCLE_TIME = 2.5 ms   (default 0.0 ms)" in shown
    assert "f00d" not in shown
    subjects = "This process, This host, Negotiation, Waiting for peers, Training, Data planes, Timeline, Messages"
    assert re.findall("^== (.*)$", shown, re.MULTILINE) == subjects.split(", ")
    assert shown.index("== Negotiation\nHVDLITE_FUSION_THRESHOLD") > shown.index("HVDLITE_RUN_SECRET")
    assert re.search(r"HVDLITE_SPIN = -1.0 µs\n.*\n    a wake-up takes \d+ µs on this host\n", shown)


def test_check_build_names_what_is_missing_and_why(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-cb"]) == 0
    shown = capfd.readouterr().out
    assert f"hvdlite {__version__}" in shown
    for part in ("ABI", "pyzmq", "CURVE", "local", "shm", "ring", "zmq", "PyTorch", "TensorFlow"):
        assert any(part in line and ("[X]" in line or "(" in line) for line in shown.splitlines()), part


@pytest.mark.parametrize("why", [NODE_LEFT, f"{NODE_BROKE}: Connection reset by peer"])
def test_the_box_about_a_node_that_is_gone_says_where_to_look_and_what_to_do(why: str) -> None:
    box = "\n".join(describe_failure(Failure(1, "b", None, 1, None, 1.0, f"was lost: {why}"), [], None))
    for part in ("rank 1 on b was lost: ", why, "'kubectl describe pod'", "start the job again on all nodes"):
        assert part in box
    other = "\n".join(describe_failure(Failure(1, "b", None, 1, None, 1.0, "was lost: no sign of life"), [], None))
    assert "pod" not in other


def test_the_box_about_a_rank_that_was_killed(tmp_path: Path) -> None:
    failure = Failure(3, "here", 4711, 137, 9, 1.0, "was ended by signal 9 (SIGKILL)")
    box = "\n".join(describe_failure(failure, ["last words"], tmp_path / "stderr"))
    for part in ("rank 3 on here was ended by signal 9 (SIGKILL)", "4711", "out of memory", "last words", "its log: "):
        assert part in box
