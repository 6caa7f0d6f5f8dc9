"""All of Horovod's flags: each sets what it says, or is always so, or has no effect and says so, or is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hvdlite.launcher.cli import hvdrun, main
from hvdlite.launcher.options.flags import Always, Flag, NoEffect, Refused, Sets
from hvdlite.launcher.options.table import FLAGS
from tests.launcher.hvdrun import python, run

# Every spelling of horovodrun 0.28.1, and --slots, as its docs shorten one.
HOROVODS = """
    -v --version -np --num-proc -cb --check-build --disable-cache --start-timeout --output-filename --verbose
    --config-file -prefix-timestamp --prefix-output-with-timestamp -H --hosts -hostfile --hostfile
    --host-discovery-script
    --fusion-threshold-mb --cycle-time-ms --cache-capacity --hierarchical-allreduce --no-hierarchical-allreduce
    --hierarchical-allgather --no-hierarchical-allgather --torus-allreduce --no-torus-allreduce --autotune --no-autotune
    --autotune-log-file --autotune-warmup-samples --autotune-steps-per-sample --autotune-bayes-opt-max-samples
    --autotune-gaussian-process-noise --min-np --min-num-proc --max-np --max-num-proc --slots-per-host --slots
    --elastic-timeout --reset-limit --blacklist-cooldown-range
    --timeline-filename --timeline-mark-cycles --no-timeline-mark-cycles
    --no-stall-check --stall-check --stall-check-warning-time-seconds --stall-check-shutdown-time-seconds
    --mpi-threads-disable --no-mpi-threads-disable --mpi-args --tcp --binding-args --num-nccl-streams --thread-affinity
    --gloo-timeout-seconds --log-level --log-with-timestamp --log-without-timestamp --log-hide-timestamp
    --no-log-hide-timestamp --gloo --mpi --jsrun
    -p --ssh-port -i --ssh-identity-file --network-interface --network-interfaces
""".split()

SETS = {
    "--start-timeout 12": ("START_TIMEOUT", "12"),
    "--fusion-threshold-mb 64": ("FUSION_THRESHOLD", str(64 << 20)),
    "--fusion-threshold-mb=0": ("FUSION_THRESHOLD", "0"),
    "--cycle-time-ms 2.5": ("CYCLE_TIME", "2.5"),
    "--cache-capacity 0": ("CACHE_CAPACITY", "0"),
    "--stall-check": ("STALL_CHECK_DISABLE", "0"),
    "--no-stall-check": ("STALL_CHECK_DISABLE", "1"),
    "--stall-check-warning-time-seconds 5": ("STALL_CHECK_TIME_SECONDS", "5"),
    "--stall-check-shutdown-time-seconds 9": ("STALL_SHUTDOWN_TIME_SECONDS", "9"),
    "--gloo-timeout-seconds 45": ("PROGRESS_TIMEOUT", "45"),
    "--log-level DEBUG": ("LOG_LEVEL", "DEBUG"),
    "--log-with-timestamp": ("LOG_HIDE_TIME", "0"),
    "--log-without-timestamp": ("LOG_HIDE_TIME", "1"),
    "--log-hide-timestamp": ("LOG_HIDE_TIME", "1"),
    "--no-log-hide-timestamp": ("LOG_HIDE_TIME", "0"),
    "--timeline-filename t.json": ("TIMELINE", "t.json"),
    "--timeline-mark-cycles": ("TIMELINE_MARK_CYCLES", "1"),
    "--no-timeline-mark-cycles": ("TIMELINE_MARK_CYCLES", "0"),
}
WRONG = {
    "--start-timeout -1": "--start-timeout='-1' must be at least 0",
    "--fusion-threshold-mb -1": "--fusion-threshold-mb='-1' must be at least 0",
    "--fusion-threshold-mb 1.5": "--fusion-threshold-mb='1.5' must be a whole number",
    "--cycle-time-ms fast": "--cycle-time-ms='fast' must be a number",
    "--cache-capacity nan": "--cache-capacity='nan' must be a whole number",
    "--stall-check-warning-time-seconds -0.5": "must be at least 0",
    "--stall-check-shutdown-time-seconds 1e9": "must be at most 1e+06",
    "--gloo-timeout-seconds 0": "--gloo-timeout-seconds='0' must be at least 1",
    "--log-level loud": "--log-level='loud' must be one of trace, debug",
    "--log-with-timestamp --log-hide-timestamp": "--log-with-timestamp and --log-hide-timestamp contradict each other",
    "--stall-check=yes": "does not take a value",
    "--foo": "No such option '--foo'. Did you mean '--gloo'?",
    "--fusion-threshold 8": "Did you mean '--fusion-threshold-mb'?",
}


def _words(flag: Flag) -> list[str]:
    return [flag.names[-1], *(["1"] * len(flag.metavar.split()))]


def _flags(kind: type[Flag]) -> list[Flag]:
    return [flag for flag in FLAGS if isinstance(flag, kind)]


def _shown(flag: Flag) -> str:
    return flag.names[0]


def test_every_flag_is_known() -> None:
    options = {name for option in hvdrun.params for name in (*option.opts, *option.secondary_opts)}
    assert set(HOROVODS) - options == set()
    assert {name for flag in FLAGS for name in (*flag.names, flag.opposite) if name} - set(HOROVODS) == set()


@pytest.mark.parametrize("words", SETS)
def test_the_ranks_get_the_setting_under_both_names(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, value = SETS[words]
    assert main([*words.split(), "-np", "1", "--dry-run", "true"]) == 0
    shown = capsys.readouterr()
    assert f"  HVDLITE_{name}={value}\n" in shown.out
    assert (f"  HOROVOD_{name}={value}\n" in shown.out) == (name != "PROGRESS_TIMEOUT")
    assert shown.err == ""


def test_every_setting_flag_is_tried() -> None:
    assert {words.partition(" ")[0].partition("=")[0] for words in SETS} == {
        name for flag in _flags(Sets) for name in (*flag.names, flag.opposite) if name
    }


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_value_is_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), "-np", "1", "true"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert WRONG[words] in shown.err


@pytest.mark.parametrize("flag", _flags(NoEffect), ids=_shown)
def test_what_has_no_effect_is_told_and_the_job_runs(flag: Flag, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*_words(flag), "-np", "1", "--dry-run", "true"]) == 0
    assert capsys.readouterr().err == f"hvdrun: {flag.names[0]} has no effect: {flag.note}.\n"


@pytest.mark.parametrize("flag", _flags(Refused), ids=_shown)
def test_what_is_refused_starts_nothing(flag: Flag, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*_words(flag), "-np", "1", sys.executable, "-c", "print('it ran')"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith(f"hvdrun: {' / '.join(flag.names)} is refused: {flag.note}.")


@pytest.mark.parametrize("word", [flag.names[0] for flag in _flags(Always)] + [f.opposite for f in FLAGS if f.opposite])
def test_what_is_so_anyway_needs_no_word(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word, "-np", "1", "--dry-run", "true"]) == 0
    assert capsys.readouterr().err == ""


def test_flags_without_effect_share_a_line_for_one_reason(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--autotune --autotune-log-file f --num-nccl-streams 2 -np 1 --dry-run true"
    assert main(words.split()) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("hvdrun: --autotune, --autotune-log-file have no effect: nothing is tuned")
    assert second.startswith("hvdrun: --num-nccl-streams has no effect: ")


_SHOW = "import json, os; print(json.dumps([os.environ.get(f'{p}_CYCLE_TIME') for p in ('HVDLITE', 'HOROVOD')]))"


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        ([], [None, "9"]),
        (["--config-file", "F"], ["8", "8"]),
        (["--cycle-time-ms", "7", "--config-file", "F"], ["7", "7"]),
        (["-x", "HVDLITE_CYCLE_TIME=6", "--cycle-time-ms", "7", "--config-file", "F"], ["6", "9"]),
        (["-x", "HOROVOD_CYCLE_TIME=6", "--config-file", "F"], [None, "6"]),
    ],
    ids=["environment", "file", "flag", "-x", "-x in Horovod's words"],
)
def test_what_wins(words: list[str], seen: list[str | None], tmp_path: Path) -> None:
    file = tmp_path / "tune.yaml"
    file.write_text("params:\n  cycle_time_ms: 8\n")
    words = [str(file) if word == "F" else word for word in words]
    ended = run(*words, "-np", "1", *python(_SHOW), HOROVOD_CYCLE_TIME="9")
    assert json.loads(ended.stdout.removeprefix("[0]<stdout>:")) == seen, ended.stderr
