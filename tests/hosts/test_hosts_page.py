"""The commands at the top of docs/hosts.md work as written."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.hosts import ROOT, Network, missing

TOP = (ROOT / "docs/hosts.md").read_text().partition("\n## ")[0]
COMMANDS = re.findall(r"^(hvdrun .*?) *#", TOP, re.MULTILINE)
RANKS = "import hvdlite as hvd, numpy; hvd.init(); print(hvd.allreduce(numpy.ones(1), op=hvd.Sum)[0], 'ranks')"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Network]:
    if reason := missing():
        pytest.skip(reason)
    with Network("node1", "node2") as network:
        yield network


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_works_on_two_hosts(nodes: Network, tmp_path: Path, command: str) -> None:
    (tmp_path / "hosts.txt").write_text("node1 slots=2\nnode2 slots=2\n")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    trains = "torch_digits" in command and "--sync" not in command and "--dry-run" not in command
    if not trains:  # once is enough
        (tmp_path / "examples/torch_digits.py").write_text(RANKS)
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = nodes["node1"].run("sh", "-c", command, cwd=tmp_path, env={"PATH": programs})
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    if "--sync" in command:
        assert ended.stdout.count(":4.0 ranks\n") == 4
    if trains:
        accuracy = re.search(r"([0-9.]+) ?%", ended.stdout.splitlines()[-1])
        assert accuracy is not None, ended.stdout
        assert float(accuracy[1]) >= 97
