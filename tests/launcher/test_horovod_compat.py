"""The workers find hvdlite under Horovod's name: with ``--horovod-compat`` always, else where no Horovod is."""

from __future__ import annotations

import shlex
import sys

import pytest

from hvdlite.compat import FALLBACK, FOLDER, is_lent
from hvdlite.launcher.cli import hvdrun
from hvdlite.launcher.options.environment import environment_of
from hvdlite.launcher.options.job import JobOptions
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


_TRIES = """
try:
    from horovod.common.basics import HorovodBasics
except ImportError:
    print("alone")
else:
    hvd = HorovodBasics()
    hvd.init()
    print(hvd.rank(), "of", hvd.size())
"""


def test_without_the_flag_a_program_that_tries_horovod_finds_hvdlite() -> None:
    ended = run("-np", "2", sys.executable, "-c", _TRIES, PYTHONPATH="mine")
    assert sorted(ended.stdout.splitlines()) == [f"[{rank}]<stdout>:{rank} of 2" for rank in range(2)]
    told = [line for line in ended.stderr.splitlines() if "stands in for Horovod" in line]
    assert len(told) == 1, ended.stderr
    assert told[0].startswith("[0]<stderr>:")
    plan = run("-np", "1", "--dry-run", "true", PYTHONPATH="mine").stdout
    assert f"PYTHONPATH={shlex.quote(f'mine:{FALLBACK}')}\n" in plan
    assert "STALL" not in plan


def test_a_probe_alone_says_nothing() -> None:
    ended = run("--quiet", "-np", "1", sys.executable, "-c", "import horovod.common.basics")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (("--no-horovod-compat",), {}),
        (("-x", "HVDLITE_HOROVOD_COMPAT=off"), {}),
        (("-x", "HVDLITE_HOROVOD_COMPAT=0", "--horovod-compat"), {}),
        ((), {"HVDLITE_HOROVOD_COMPAT": "0"}),
    ],
)
def test_the_name_is_not_lent_if_the_user_does_not_want_it(
    options: tuple[str, ...], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (environment | {"PYTHONPATH": f"mine:{FALLBACK}"}).items():
        monkeypatch.setenv(name, value)
    assert environment_by(*options)["PYTHONPATH"] == "mine"
    monkeypatch.setenv("PYTHONPATH", FOLDER)
    assert "PYTHONPATH" not in environment_by(*options)


def test_what_a_rank_starts_is_lent_the_name_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for option, path in {"--horovod-compat": FOLDER, "--no-horovod-compat": None, "--quiet": FALLBACK}.items():
        outer = environment_by(option)
        with monkeypatch.context() as inside:
            for name in ("PYTHONPATH", "HVDLITE_HOROVOD_COMPAT"):
                if name in outer:
                    inside.setenv(name, outer[name])
            assert environment_by().get("PYTHONPATH") == outer.get("PYTHONPATH") == path
            assert is_lent(outer) == (path is not None)
    monkeypatch.setenv("PYTHONPATH", f"mine:{FOLDER}")  # as the docs have it for other launchers
    assert environment_by()["PYTHONPATH"] == f"mine:{FOLDER}"


def environment_by(*options: str) -> dict[str, str]:
    """The environment that hvdrun makes for its ranks from that of this process and ``options``."""
    context = hvdrun.make_context("hvdrun", [*options, "-np", "1", "true"])
    values = {field: context.params[field] for field in JobOptions._fields}
    return environment_of(JobOptions(**values), {})


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
