"""Hosts that share no disk get the working directory with --sync."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.harness.faults import hide
from tests.harness.hosts import ROOT, Network
from tests.hosts.jobs import lines_by_rank

HVDRUN = (sys.executable, "-m", "hvdlite.launcher.cli", "--sync", "-H", "a:1,b:1,c:1")
PROGRAM = "import part; print(open('data/numbers').read().strip(), part.NAME)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work/data").mkdir(parents=True)
    (tmp_path / "work/data/numbers").write_text("1 2 3\n")
    (tmp_path / "work/part.py").write_text("NAME = 'first'\n")
    (tmp_path / "work/train.py").write_text(PROGRAM)
    return tmp_path / "work"


def test_ranks_elsewhere_run_in_a_copy_that_follows_the_changes(network: Network, folder: Path) -> None:
    def outputs() -> list[str]:
        ended = network["a"].run(*HVDRUN, sys.executable, "train.py", cwd=folder, env={"PYTHONPATH": str(ROOT)})
        return [line for (line,) in lines_by_rank(ended).values()]

    with hide(network["b"], folder.parent), hide(network["c"], folder.parent):
        assert outputs() == ["1 2 3 first"] * 3
        (folder / "part.py").write_text("NAME = 'second'\n")
        assert outputs() == ["1 2 3 second"] * 3
        assert network["b"].check("ls", str(folder.parent)) == ""
