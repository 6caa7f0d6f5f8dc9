"""Scripts that know only Horovod run as they are: one under ``hvdrun --horovod-compat``, all where ranks are forked.

What differs by script or option does not differ by launcher, and to import torch takes most of a run under hvdrun.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.patience import PATIENCE_S
from tests.harness.programs import output_of
from tests.house.tree import ROOT
from tests.launcher.hvdrun import COMMAND

SCRIPTS = ROOT / "tests/compat/scripts"
pytestmark = pytest.mark.usefixtures("torch_fork_server")


def launch(ranks: int, *command: str, cwd: Path) -> str:
    """Returns the output of ``hvdrun --horovod-compat`` for a Python command. Fails with all of it if it fails."""
    ended = subprocess.run(
        [*COMMAND, "--horovod-compat", "-np", str(ranks), sys.executable, *command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def forked(ranks: int, script: str, *options: str, cwd: Path) -> str:
    """Returns a script's output on ranks that are forked from a process which has imported torch."""
    return output_of(ranks, SCRIPTS / script, *options, cwd=cwd, as_horovod=True)


def test_training_learns_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    shown = forked(2, "train_digits.py", "--epochs", "1", cwd=tmp_path)
    assert re.findall(r"epoch (\d): loss", shown) == ["1"]
    resumed = forked(2, "train_digits.py", "--epochs", "2", cwd=tmp_path)
    assert re.findall(r"epoch (\d): loss", resumed) == ["2"]
    assert accuracy(resumed) > 90
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1.pt", "checkpoint-2.pt"]


@pytest.mark.parametrize(
    "options",
    [
        ["--fp16-allreduce", "--batches-per-allreduce", "2", "--gradient-predivide-factor", "2"],
        ["--use-adasum", "--lr", "0.05"],
    ],
    ids=lambda options: options[0],
)
def test_training_learns_with(options: list[str], tmp_path: Path) -> None:
    assert accuracy(forked(2, "train_digits.py", "--epochs", "2", *options, cwd=tmp_path)) > 90


def accuracy(shown: str) -> float:
    """The last one of a run of train_digits.py, in percent."""
    return float(re.findall(r"Test set: .* Accuracy: ([\d.]+)%", shown)[-1])


@pytest.mark.parametrize("options", [["--fp16-allreduce", "--num-groups", "2"], ["--use-adasum"]], ids=str)
def test_the_benchmark_reports(options: list[str], tmp_path: Path) -> None:
    shown = forked(2, "synthetic_benchmark.py", *options, cwd=tmp_path)
    assert "Number of CPUs: 2" in shown
    assert float(re.findall(r"Total img/sec on 2 CPU\(s\): ([\d.]+) ", shown)[0]) > 0


def test_the_suite_passes_under_hvdrun_and_pytest(tmp_path: Path) -> None:
    suite = shutil.copy(SCRIPTS / "collectives_suite.py", tmp_path / "test_collectives.py")
    options = ("-q", "-p", "no:cacheprovider", "-k", "not optimizer")  # the first optimizer of a process imports dynamo
    shown = launch(2, "-m", "pytest", *options, str(suite), cwd=tmp_path)
    summaries = re.findall(r"\[(\d)\]<stdout>:(\d+) passed", shown)
    assert sorted(summaries) == [(str(rank), str(suite.read_text().count("def test_") - 1)) for rank in range(2)]


@pytest.mark.parametrize(("ranks", "skipped"), [(1, 3), (3, 0)])
def test_the_suite_passes_on_every_rank(ranks: int, skipped: int, tmp_path: Path) -> None:
    count = (SCRIPTS / "collectives_suite.py").read_text().count("def test_")
    shown = forked(ranks, "collectives_suite.py", cwd=tmp_path)
    assert shown.count(f"Ran {count} tests") == ranks
    assert re.findall(r"^OK.*$", shown, flags=re.MULTILINE) == [f"OK (skipped={skipped})" if skipped else "OK"] * ranks
