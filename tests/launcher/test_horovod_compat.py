"""``hvdrun --horovod-compat``: the workers find hvdlite under Horovod's name, and nothing else changes."""

from __future__ import annotations

import os
import shlex
import sys

import pytest

from hvdlite.compat import FOLDER
from tests.launcher.hvdrun import run

_SHOW = "import horovod, os; print(horovod.__version__, os.environ['PYTHONPATH'])"


@pytest.mark.parametrize("options", [("--horovod-compat", "-np", "2"), ("-np", "2", "--horovod-compat", "--")], ids=str)
def test_the_flag_stands_anywhere_before_the_command(options: tuple[str, ...]) -> None:
    ended = run(*options, sys.executable, "-c", _SHOW, PYTHONPATH="mine")
    assert sorted(ended.stdout.splitlines()) == [f"[{rank}]<stdout>:0.28.1 {FOLDER}:mine" for rank in range(2)]


def test_any_python_that_the_command_starts_finds_it() -> None:
    ended = run("--horovod-compat", "-np", "1", "sh", "-c", f'cd /; exec {shlex.quote(sys.executable)} -c "{_SHOW}"')
    assert ended.stdout.startswith("[0]<stdout>:0.28.1 "), ended.stderr


def test_a_path_that_was_given_with_x_stays_behind() -> None:
    ended = run("-x", "PYTHONPATH=given", "--horovod-compat", "-np", "1", sys.executable, "-c", _SHOW)
    assert ended.stdout == f"[0]<stdout>:0.28.1 {FOLDER}:given\n", ended.stderr


def test_without_the_flag_nothing_stands_for_horovod() -> None:
    ended = run("-np", "1", sys.executable, "-c", "import os; print('PYTHONPATH' in os.environ); import horovod")
    assert ended.stdout == f"[0]<stdout>:{'PYTHONPATH' in os.environ}\n"
    assert "No module named 'horovod'" in ended.stderr


def test_a_dry_run_shows_it() -> None:
    assert f"PYTHONPATH={shlex.quote(FOLDER)}" in run("--horovod-compat", "--dry-run", "-np", "1", "true").stdout


@pytest.mark.parametrize(
    ("options", "environment", "seconds"),
    [
        (("--horovod-compat",), {}, "60.0"),
        ((), {}, "10.0"),
        (("--horovod-compat", "-x", "HOROVOD_STALL_CHECK_TIME_SECONDS=7"), {}, "7.0"),
        (("--horovod-compat", "--stall-check-warning-time-seconds", "8"), {}, "8.0"),
        (("--horovod-compat",), {"HVDLITE_STALL_CHECK_TIME_SECONDS": "9"}, "9.0"),
    ],
)
def test_stalls_are_reported_when_horovod_would_unless_the_user_wants_another_time(
    options: tuple[str, ...], environment: dict[str, str], seconds: str
) -> None:
    show = "from hvdlite.settings import Settings; print(Settings.read().stall_check_time_seconds)"
    ended = run(*options, "-np", "1", sys.executable, "-c", show, **environment)
    assert ended.stdout == f"[0]<stdout>:{seconds}\n", ended.stderr
