"""A command beside processes that keep cores busy, and the line that tells what a run skipped."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from tests import conftest

LOAD = (sys.executable, "-m", "tests.harness.load", "-n", "2")


def test_the_command_runs_beside_them_and_its_code_comes_back() -> None:
    ended = subprocess.run([*LOAD, "sh", "-c", "pgrep -c -P $PPID; exit 3"], capture_output=True, text=True)
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.split()[-1] == "3"  # two that compute, and the command


def test_what_was_skipped_is_one_line() -> None:
    def skipped(reason: str) -> Any:
        return SimpleNamespace(longrepr=("test_x.py", 1, f"Skipped: {reason}"))

    lines: list[str] = []
    reporter: Any = SimpleNamespace(
        stats={"skipped": [skipped("needs root"), skipped("test hosts need nftables"), skipped("needs root")]},
        write_line=lambda line, **_: lines.append(line),
    )
    conftest.pytest_terminal_summary(reporter)
    assert lines == ["skipped: 2 (needs root); 1 (test hosts need nftables)"]
