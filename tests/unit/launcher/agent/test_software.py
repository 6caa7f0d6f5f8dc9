"""An agent's facts about its host's Python: whether hvdlite loads there, and what it finds."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlite.launcher.agent.software import examine
from hvdlite.version import __version__


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (b'{"hvdlite": "1"}\n{"problem": ""}\n{"cu', {"hvdlite": "1", "problem": ""}),
        (b'{"hvdlite": "1"}\n', {"problem": "loading it took more than 20 s"}),
        (None, {"problem": "loading it took more than 20 s"}),
    ],
)
def test_what_was_found_before_the_time_was_over_counts(
    said: bytes | None, found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes last is of GPUs, whose driver may take long."""

    def run(command: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 20, said)

    monkeypatch.setattr(subprocess, "run", run)
    assert examine() == found


def test_this_python_has_what_hvdlite_needs() -> None:
    found = examine()
    assert found["problem"] == ""
    assert found["hvdlite"] == __version__
    assert found["has_curve"]
    assert 0 < found["wakeup_us"] <= 2000


def test_a_python_without_hvdlite_says_so(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    python.chmod(0o755)
    problem = examine(str(python))["problem"]
    assert problem.startswith("loading it ended with code 1: ")
    assert "hvdlite" in problem


def test_a_python_that_crashes_after_it_has_told_of_itself_keeps_what_it_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"hvdlite": "1.0"}\'\necho boom >&2\nkill -SEGV $$\n')
    python.chmod(0o755)
    assert examine(str(python)) == {"hvdlite": "1.0", "problem": "loading it ended with code -11: boom"}


def test_a_python_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    assert examine(str(tmp_path / "python"))["problem"].startswith("No such file or directory")
