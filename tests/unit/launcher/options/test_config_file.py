"""``--config-file``: Horovod's sections and keys do what their flags do, and a wrong one is told by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdlite.launcher.cli import main
from hvdlite.launcher.options.table import FLAGS

# Every key that Horovod 0.28.1 reads.
HOROVODS = """
    params.fusion_threshold_mb params.cycle_time_ms params.cache_capacity params.hierarchical_allreduce
    params.hierarchical_allgather params.torus_allreduce autotune.enabled autotune.log_file autotune.warmup_samples
    autotune.steps_per_sample autotune.bayes_opt_max_samples autotune.gaussian_process_noise timeline.filename
    timeline.mark_cycles stall_check.enabled stall_check.warning_time_seconds stall_check.shutdown_time_seconds
    library_options.mpi_threads_disable library_options.num_nccl_streams library_options.thread_affinity
    library_options.gloo_timeout_seconds logging.level logging.with_timestamp logging.hide_timestamp
""".split()

GOOD = """\
controller: gloo
params:
    fusion_threshold_mb: 32
    cycle_time_ms: 5
    hierarchical_allreduce: false
    torus_allreduce:
autotune:
timeline:
    filename: t.json
    mark_cycles: false
stall_check:
    enabled: off
library_options:
    gloo_timeout_seconds: 60
logging:
    level: INFO
    with_timestamp: No
"""
SETTINGS = {
    "FUSION_THRESHOLD": str(32 << 20),
    "CYCLE_TIME": "5",
    "STALL_CHECK_DISABLE": "1",
    "PROGRESS_TIMEOUT": "60",
    "TIMELINE": "t.json",
    "TIMELINE_MARK_CYCLES": "0",
    "LOG_LEVEL": "INFO",
    "LOG_HIDE_TIME": "1",
}
BAD = {
    "parms:\n  a: 1\n": "line 1: parms is not known; did you mean params? the file has controller, params, ",
    "params:\n  cycle_time: 1\n": "line 2: params.cycle_time is not known; did you mean cycle_time_ms? params has ",
    "params: 3\n": "line 1: params holds keys of its own; params has ",
    "np: 4\n": "line 1: np is not known",
    "params:\n  cycle_time_ms: -1\n": "line 2: params.cycle_time_ms='-1' must be at least 0",
    "logging:\n  level: ''\n": "line 2: logging.level='' must be one of ",
    "autotune:\n  enabled: maybe\n": "line 2: autotune.enabled='maybe' must be 0 or 1",
    "timeline:\n  mark_cycles: often\n": "line 2: timeline.mark_cycles='often' must be 0 or 1",
    "controller: mpi\n": "line 1: controller: mpi is refused: hvdrun starts the ranks itself",
    "controller: nccl\n": "line 1: controller='nccl' must be one of gloo, mpi",
    "logging:\n  with_timestamp: 1\n  hide_timestamp: 1\n": "contradict each other",
    "params: [\n": "line 1: 'params: [' is not 'key: value'",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tune.yaml"


def test_every_key_is_known() -> None:
    assert sorted(flag.key for flag in FLAGS if flag.key) == sorted(HOROVODS)


def test_the_ranks_get_what_the_file_says(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD)
    assert main(["--config-file", str(file), "-np", "1", "--dry-run", "true"]) == 0
    shown = capsys.readouterr()
    assert {name: f"  HVDLITE_{name}={value}\n" in shown.out for name, value in SETTINGS.items()} == dict.fromkeys(
        SETTINGS, True
    )
    assert shown.err == ""


def test_a_key_without_effect_is_told_by_its_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("autotune:\n  enabled: true\n")
    assert main(["--config-file", str(file), "-np", "1", "--dry-run", "true"]) == 0
    assert capsys.readouterr().err.startswith(
        f"hvdrun: {file}, line 2: autotune.enabled has no effect: nothing is tuned"
    )


def test_the_command_line_overrules_the_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("autotune:\n  enabled: true\ntimeline:\n  mark_cycles: true\nlogging:\n  with_timestamp: false\n")
    words = ["--no-autotune", "--no-timeline-mark-cycles", "--no-log-hide-timestamp"]
    assert main(["--config-file", str(file), *words, "-np", "1", "--dry-run", "true"]) == 0
    shown = capsys.readouterr()
    assert "  HVDLITE_LOG_HIDE_TIME=0\n" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize("text", BAD)
def test_what_is_wrong_is_one_line(text: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(text)
    assert main(["--config-file", str(file), "-np", "1", "true"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith(f"hvdrun: {file}, line ")
    assert BAD[text] in shown.err


def test_a_file_that_cannot_be_read(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config-file", str(file), "-np", "1", "true"]
    assert main(words) == 2
    file.write_bytes(b"\xff\xfe")
    assert main(words) == 2
    missing, binary = capsys.readouterr().err.splitlines()
    assert f"{file} cannot be read: No such file or directory." in missing
    assert f"{file} cannot be read: it is not text in UTF-8." in binary
