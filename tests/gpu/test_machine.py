"""The command for a machine with GPUs: its stages, what it remembers, and its table; some stages run on the fakes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.fake import Fakes
from tests.gpu.machine import figures, running
from tests.gpu.machine.facts import differing
from tests.gpu.machine.running import ROOT, Run, Stage
from tests.gpu.machine.stages import stages
from tests.harness.patience import PATIENCE_S


def _python(program: str) -> tuple[str, ...]:
    return sys.executable, "-S", "-c", program


def _told(folder: Path) -> list[str]:
    """The outcome of each stage, in the order of the summary."""
    lines = (folder / "summary.txt").read_text().splitlines()
    return [re.sub(r"^\S+ \S+ (\S+) +(.*?)( in \d+ s)?$", r"\1 \2", line) for line in lines]


def _one_fails(folder: Path) -> list[Stage]:
    return [
        Stage("first", 60, [_python(f"open({str(folder / 'runs')!r}, 'a').write('x')")]),
        Stage("second", 60, [_python("print('what went wrong'); raise SystemExit(3)"), _python("print('never')")]),
        Stage("third", 60, [_python("import os; assert os.environ['OWN'] + os.environ['ALL'] == 'ab'")], {"OWN": "a"}),
    ]


def test_a_stage_that_fails_stops_no_other_and_only_those_that_passed_are_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert not Run(tmp_path / "logs", {"ALL": "b"}).run(_one_fails(tmp_path))
    failed = "second FAILED with 3"
    assert _told(tmp_path / "logs") == ["first passed", failed, "third passed", "first passed before", failed,
                                        "third passed before"]  # fmt: skip
    assert (tmp_path / "runs").read_text() == "x"
    assert "    what went wrong" in capsys.readouterr().out
    assert "never" not in (tmp_path / "logs/second.log").read_text().splitlines()
    assert Run(tmp_path / "logs", {"ALL": "b"}).run(_one_fails(tmp_path)[:1], again=True)
    assert (tmp_path / "runs").read_text() == "xx"


def test_what_passed_with_other_sources_or_settings_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage("first", 60, [_python("pass")])
    assert Run(tmp_path, {}).run([stage])
    assert Run(tmp_path, {}).has_passed(stage)
    assert not Run(tmp_path, {"TEST_GPU": "machine"}).has_passed(stage)
    assert not Run(tmp_path, {}).has_passed(stage._replace(commands=[_python("1")]))
    monkeypatch.setattr(running, "digest", lambda: "other")
    assert not Run(tmp_path, {}).has_passed(stage)


def test_a_stage_ends_at_its_limit_with_all_of_its_processes(tmp_path: Path) -> None:
    """A pipe is at its end once all who could write to it are gone."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    kept = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    program = f"import os, time; pipe = open({str(fifo)!r}, 'w'); os.fork(); time.sleep(1e6)"
    slow, after = Stage("slow", 2, [_python(program)]), Stage("next", 60, [_python("pass")])
    assert not Run(tmp_path, {}).run([slow, after])
    assert _told(tmp_path) == ["slow FAILED: not done after 2 s or the time that was left,", "next passed"]
    os.set_blocking(kept, True)
    assert os.read(kept, 1) == b""
    os.close(kept)


def test_a_stage_that_is_ended_says_what_it_has_found(tmp_path: Path) -> None:
    program = "import time\ntry:\n    time.sleep(1e6)\nexcept KeyboardInterrupt:\n    print('two of three failed')"
    assert not Run(tmp_path, {}).run([Stage("slow", 2, [_python(program)])])
    assert "two of three failed" in (tmp_path / "slow.log").read_text().splitlines()


def test_without_time_nothing_is_begun(tmp_path: Path) -> None:
    assert not Run(tmp_path, {}, budget_s=0).run([Stage("late", 60, [_python("pass")])])
    assert _told(tmp_path) == ["late NOT RUN: no time left"]


def test_all_stages_have_names_of_their_own_and_fit_into_half_an_hour(tmp_path: Path) -> None:
    for is_tiny in (False, True):
        names = [stage.name for stage in stages(tmp_path, is_tiny)]
        assert len(set(names)) == len(names)
    assert sum(stage.limit_s for stage in stages(tmp_path, is_tiny=False)) <= 1800


def test_figures_stand_beside_their_targets_and_what_is_missing_is_named(tmp_path: Path) -> None:
    assert figures.table(tmp_path).count("not measured") == 7
    row = {"bytes": 1 << 20, "busbw_GBps": 98.0, "median_us": 1000.0, "op": "allreduce"}
    rows = [{**row, "system": "hvdlite"}, {**row, "system": "nccl", "busbw_GBps": 100.0, "median_us": 980.0}]
    for name in ("bandwidth", "calls", "resnet50-float32", "fusion-3-1K"):
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    (tmp_path / "staged.json").write_text(json.dumps(rows[:1]))
    (tmp_path / "parts.json").write_text(json.dumps([{**row, "system": "launch"}]))
    (tmp_path / "trace.json").write_text(json.dumps([{**row, "system": "submits", "op": "9 of 9 inside backward"}]))
    text = figures.table(tmp_path)
    for line in (
        "| bandwidth, 1,048,576 bytes | 98.000 GB/s | 100.000 GB/s | 0.980 | ≥ 0.98 |",
        "| staged, 1,048,576 bytes | 98.000 GB/s | not measured |  |  |",
        "| calls | 1.000 ms | 0.980 ms | 1.020 | ≤ 1.2 |",
        "| resnet50-float32 | 1.000 ms | 0.980 ms | 1.020 | ≤ 1 |",
        "| resnet50-bfloat16 | not measured |  |  | ≤ 1 |",
        "| fusion-3-1K | hvdlite 1000 µs, nccl 980 µs |  |  | hvdlite is the faster one |",
        "| parts, 1,048,576 bytes: launch | 1000 µs |  |  | reported |",
        "| trace, 1,048,576 bytes: submits | 1000 µs (9 of 9 inside backward) |  |  | all submits inside backward |",
    ):
        assert line in text.splitlines()


def test_headers_are_compared_with_what_is_recorded(tmp_path: Path) -> None:
    declared = "ncclResult_t  ncclCommAbort(ncclComm_t comm);\nncclResult_t ncclGetVersion(int *version, int more);\n"
    (tmp_path / "nccl.h").write_text(f"{declared}enum {{ ncclSum = 7 }};\n")
    found = list(differing("nccl.h", tmp_path))
    assert not any("ncclCommAbort" in line for line in found)
    assert any(re.match(r"DIFFERS ncclGetVersion: \['int\*', 'int'\]", line) for line in found)
    assert list(differing("nccl.h", tmp_path / "none")) == []


def test_the_command_runs_its_stages_on_the_fakes(fake_torch: Path, loaded_fakes: Fakes, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu.machine", "--fakes", "--logs", str(tmp_path)]
    for name in ("facts", "calls"):
        command += ["--stage", name]
    environ = {**os.environ, "FAKE_CUDA": str(loaded_fakes.folder), "FAKE_TORCH": str(fake_torch)}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=3 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert _told(tmp_path) == ["facts passed", "calls passed"]
    assert "missing: none" in (tmp_path / "facts.log").read_text()
    assert "| calls | " in (tmp_path / "figures.md").read_text()
