"""A command beside processes that keep cores busy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import still_alive

LOAD = (sys.executable, "-m", "tests.harness.load", "-n", "2")


def test_the_command_runs_beside_them_and_its_code_comes_back() -> None:
    ended = subprocess.run([*LOAD, "sh", "-c", "pgrep -c -P $PPID; exit 3"], capture_output=True, text=True)
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.split()[-1] == "3"  # two that compute, and the command


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "SIGKILL"])
def test_the_busy_processes_end_with_the_command_or_with_whoever_started_them(number: signal.Signals) -> None:
    command = ["sh", "-c", "trap 'exit 7' INT; echo ready; sleep 600 & wait"]
    with subprocess.Popen([*LOAD, *command], stdout=subprocess.PIPE, text=True, process_group=0) as load:
        assert load.stdout is not None
        assert "2 processes keep" in load.stdout.readline()
        assert load.stdout.readline() == "ready\n"
        below = psutil.Process(load.pid).children(recursive=True)
        busy = [child.pid for child in below if child.cmdline()[1:3] == ["-m", "tests.harness.load"]]
        assert len(busy) == 2
        if number == signal.SIGINT:
            os.killpg(load.pid, number)  # as a terminal does
            assert load.wait(PATIENCE_S) == 7
        else:
            load.kill()
        assert still_alive(busy, within_s=PATIENCE_S) == []
        with suppress(ProcessLookupError):
            os.killpg(load.pid, signal.SIGKILL)  # what the command has started
