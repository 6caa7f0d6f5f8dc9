"""hvdrun writes one timeline for all ranks: on several hosts, while they run, and whoever is killed."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness import FAKES
from tests.harness.patience import until
from tests.launcher.hvdrun import pids_in, run, started

STEPS = """
import os, sys, time
from pathlib import Path
import numpy as np
import hvdlite as hvd
hvd.init()
Path(sys.argv[1], f"pid.{hvd.rank()}").write_text(str(os.getpid()))
for step in range(int(sys.argv[2])):
    hvd.allreduce(np.ones(100), name=f"x{step % 10}")
    time.sleep(0.005)  # computes
hvd.shutdown()
"""


def _load(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


def _ranks(path: Path) -> set[int]:
    return {event["pid"] for event in _load(path) if event.get("cat") == "move"}


@pytest.mark.parametrize("hosts", [("-np", "1"), ("-np", "3"), ("-H", "localhost:1,far:2,farther:1")])
def test_one_file_has_all_ranks(hosts: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    path = tmp_path / "t.json"
    flags = ("--timeline-filename", str(path), "--timeline-mark-cycles")
    ended = run(*hosts, *flags, sys.executable, "-c", STEPS, str(tmp_path), "50")
    assert (ended.returncode, ended.stderr) == (0, "")
    size = len(pids_in(tmp_path))
    flows, steps = defaultdict(list), dict.fromkeys(range(size), 0)
    for event in _load(path):
        if event.get("cat") == "batch":
            flows[event["id"]].append((event["ts"], event["ph"], event["pid"]))
        elif event["name"] == "ALLREDUCE":
            steps[event["pid"]] += 1
    assert steps == dict.fromkeys(range(size), 50)
    for ends in flows.values():  # in truth all hosts are this one, and so are their clocks
        (_, *begin), (_, *end) = sorted(ends)
        assert (begin, end[0]) == (["s", 0], "f")
        assert end[1] > 0
    assert len(flows) >= 50 * (size - 1)
    assert bool(flows) == (size > 1)
    assert {each.name for each in tmp_path.iterdir()} == {"t.json", *(f"pid.{rank}" for rank in range(size))}


@pytest.mark.parametrize("victim", ["a rank", "hvdrun", "an agent's ssh"])
def test_it_can_be_loaded_at_any_instant_and_after_a_kill(
    victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    path = tmp_path / "t.json"
    with started(
        "-H",
        "localhost:1,far:1",
        "--timeline-filename",
        str(path),
        sys.executable,
        "-c",
        STEPS,
        str(tmp_path),
        "10000000",
    ) as hvdrun:
        until(lambda: path.exists() and path.stat().st_size > 0)
        until(lambda: _ranks(path) == {0, 1})
        for _ in range(20):
            _load(path)
        ranks = [psutil.Process(int((tmp_path / f"pid.{rank}").read_text())) for rank in range(2)]
        if victim == "a rank":
            ranks[1].kill()
        elif victim == "hvdrun":
            hvdrun.kill()
        else:
            (ssh,) = [each for each in ranks[1].parents() if each.ppid() == hvdrun.pid]
            ssh.kill()
        while psutil.wait_procs([*ranks], timeout=0.01)[1]:
            _load(path)
        hvdrun.wait()
    assert _ranks(path) == {0, 1}


def test_a_file_that_cannot_be_is_one_line_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "t.json"
    ended = run("-np", "2", "--timeline-filename", str(path), "touch", str(tmp_path / "started"))
    assert ended.returncode == 2
    assert ended.stderr == (
        f"hvdrun: the timeline {path} cannot be written: No such file or directory. See 'hvdrun --help'.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_with_dynamic_ranks_write_their_own(tmp_path: Path) -> None:
    program = (
        "import hvdlite as hvd, numpy as np, sys; hvd.init(); hvd.start_timeline(sys.argv[1]); "
        "hvd.allreduce(np.ones(3)); hvd.stop_timeline()"
    )
    path = tmp_path / "t.json"
    ended = run("-np", "2", sys.executable, "-c", program, str(path), HOROVOD_TIMELINE="DYNAMIC")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t.json.rank0", "t.json.rank1"]
