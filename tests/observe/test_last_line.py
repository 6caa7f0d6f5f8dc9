"""The last line of a job says where its time went, as a trace of the same run does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness import FAKES
from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import run

SHOWN = {"HVDLITE_SUMMARY": "1"}
CLASSES = ("compute", "waiting", "communication not hidden", "data loading", "starting", "ending")
MOST_OFF = 3.0  # percentage points

_LINE = re.compile(r"^hvdrun: time ([\d.]+) s: (.*?)(?:; slowest rank (\d+) on (\S+)(?: \(.+\))?)?$", re.MULTILINE)
_PART = re.compile(r"([a-z][a-z ]*?)(?: for (?:rank \d+|each other))? (\d+) %")


def _script(folder: Path, program: str) -> str:
    script = folder / "train.py"
    script.write_text(program)
    return str(script)


def _read(stderr: str) -> tuple[float, dict[str, int], str | None]:
    """The seconds, the percentages of the classes, and the slowest rank."""
    ((seconds, parts, slowest, _),) = _LINE.findall(stderr)
    found = {name: int(percent) for name, percent in _PART.findall(parts)}
    assert set(found) <= set(CLASSES)
    assert sum(found.values()) == 100
    return float(seconds), {name: found.get(name, 0) for name in CLASSES}, slowest or None


# ---- against a trace

_TRACED = """
import json, sys, time

began = time.monotonic()

import torch
from torch.utils.data import DataLoader, Dataset

import hvdlite.torch as hvd

class Data(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.1)
        return torch.ones(2)

blocked, loading = [], []

def timed(spans, call, *arguments, **options):
    begun = time.monotonic()
    result = call(*arguments, **options)
    spans.append((begun, time.monotonic()))
    return result

def busy(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass

hvd.init()
joined = time.monotonic()
big, goes_on = torch.ones(8 << 20), torch.ones(1)
batches = timed(loading, iter, DataLoader(Data(), batch_size=None))
while goes_on:
    timed(loading, next, batches)
    hidden = hvd.allreduce_async_(big, name="hidden in part")
    busy(0.25 if hvd.rank() == 2 else 0.05)
    timed(blocked, hvd.synchronize, hidden)
    timed(blocked, hvd.allreduce_, big, name="not hidden")
    inside_s = time.monotonic() - joined
    goes_on.fill_(inside_s < max(4.0, joined - began))  # for as long as it took to start, however long that was
    timed(blocked, hvd.broadcast_, goes_on, 0, name="goes on")
left = time.monotonic()
rank = hvd.rank()
hvd.shutdown()
with open(f"{sys.argv[1]}.{rank}", "w") as file:
    json.dump({"joined": joined, "left": left, "blocked": blocked, "loading": loading}, file)
time.sleep(0.3)
"""


def _seconds(spans: list[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in spans)


def _common_s(spans: list[tuple[float, float]], others: list[tuple[float, float]]) -> float:
    return sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in spans for since, until in others)


def _traced(stamps: dict[str, Any], events: list[dict[str, Any]], rank: int) -> dict[str, float]:
    """The seconds of the classes in its session, from what the program and the timeline say."""
    own = [event for event in events if event["pid"] == rank and event["ph"] == "X"]
    agreed = {event["args"]["batch"]: event["ts"] / 1e6 for event in own if event["cat"] == "wait"}
    moved = {event["args"]["batch"]: (event["ts"] + event["dur"]) / 1e6 for event in own if event["cat"] == "move"}
    moving = sorted((agreed[batch], moved[batch]) for batch in moved)
    for index in range(1, len(moving)):  # a batch that was agreed while another moved
        begin, end = moving[index]
        moving[index] = max(begin, moving[index - 1][1]), end
    # It waits until its batch is done. When it goes on from there is up to the system.
    blocked = [
        (begin, max((end for _, end in moving if begin <= end <= until), default=begin))
        for begin, until in stamps["blocked"]
    ]
    moving_s, loading_s = _common_s(blocked, moving), _seconds(stamps["loading"])
    waiting_s = _seconds(blocked) - moving_s
    compute_s = stamps["left"] - stamps["joined"] - moving_s - waiting_s - loading_s
    return dict(zip(CLASSES, (compute_s, waiting_s, moving_s, loading_s), strict=False))


def test_the_classes_are_those_of_a_traced_run(tmp_path: Path) -> None:
    size, script, trace, stamps = 3, _script(tmp_path, _TRACED), tmp_path / "t.json", tmp_path / "stamps"
    words = ("-np", str(size), "--timeline-filename", str(trace), sys.executable, script, str(stamps))
    ended = run(*words, **SHOWN)
    assert ended.returncode == 0, ended.stderr
    wall_s, percentages, _ = _read(ended.stderr)
    events = json.loads(trace.read_text())
    ranks = [_traced(json.loads(Path(f"{stamps}.{rank}").read_text()), events, rank) for rank in range(size)]
    traced = {name: sum(100 * each[name] / wall_s / size for each in ranks) for name in ranks[0]}
    assert sum(traced.values()) > 20, traced  # else little is compared
    outside = 100 - sum(traced.values())
    assert percentages["starting"] + percentages["ending"] == pytest.approx(outside, abs=MOST_OFF)
    assert {name: percentages[name] for name in traced} == pytest.approx(traced, abs=MOST_OFF)


# ---- when there is a line, and where

_WAITING = """
import sys, time
import numpy as np
import hvdlite as hvd

hvd.init()
for step in range(4):
    if hvd.rank() == int(sys.argv[1]):
        time.sleep(1.0)
    hvd.allreduce(np.ones(3), name="weights")
if hvd.rank() == 0:
    print("trained \\xe4", flush=True)
"""


@pytest.mark.parametrize("late", [0, 1])
def test_the_rank_that_others_wait_for_is_named(tmp_path: Path, late: int) -> None:
    ended = run("-np", "3", sys.executable, _script(tmp_path, _WAITING), str(late), **SHOWN)
    assert ended.returncode == 0, ended.stderr
    wall_s, percentages, slowest = _read(ended.stderr)
    assert slowest == str(late)
    assert f"waiting for rank {late} {percentages['waiting']} %" in ended.stderr
    assert percentages["waiting"] >= 100 * 4 * 2 / 3 / wall_s - 2  # both are rounded


def test_the_slowest_rank_is_on_its_host(tmp_path: Path) -> None:
    search = f"{FAKES}:{os.environ['PATH']}"
    words = ("-H", "localhost:1,far:1", sys.executable, _script(tmp_path, _WAITING), "1")
    ended = run(*words, PATH=search, FAKE_SSH_LOG=str(tmp_path / "ssh.log"), **SHOWN)
    assert ended.returncode == 0, ended.stderr
    wall_s, percentages, _ = _read(ended.stderr)
    assert "; slowest rank 1 on far" in ended.stderr
    assert 100 * 4 / 2 / wall_s - 1 <= percentages["waiting"]


def test_stdout_is_the_same_with_the_line_and_without(tmp_path: Path) -> None:
    script = _script(tmp_path, _WAITING)
    shown = run("-np", "2", sys.executable, script, "1", **SHOWN)
    quiet = run("--quiet", "-np", "2", sys.executable, script, "1", **SHOWN)
    assert shown.stdout == quiet.stdout == "[0]<stdout>:trained \xe4\n"
    assert quiet.stderr == ""
    assert _LINE.sub("", shown.stderr) == "\n"


_KILLED = """
import os, signal, threading, time
import numpy as np
import hvdlite as hvd
from hvdlite.metrics.table import WAITED_S
from hvdlite.blackbox import format as blackbox
from hvdlite.settings import Settings

def die():
    place = int(Settings.read().blackbox.partition(":")[0])
    while True:
        memory = os.pread(place, blackbox.NBYTES, 0)
        if blackbox.quantity(memory, WAITED_S) >= 2.0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)

hvd.init()
hvd.barrier()
if hvd.rank() == 1:
    threading.Thread(target=die, daemon=True).start()
    hvd.allreduce(np.ones(3), name="only here")
time.sleep(600)
"""


def test_a_killed_rank_had_waited(tmp_path: Path) -> None:
    ended = run("-np", "2", sys.executable, _script(tmp_path, _KILLED), **SHOWN)
    assert ended.returncode == 137, ended.stderr
    wall_s, percentages, _ = _read(ended.stderr)
    assert percentages["waiting"] >= 100 * 2.0 / 2 / wall_s - 1
    assert ended.stderr.index("hvdrun: time ") < ended.stderr.index("+-- hvdrun: rank 1")


_SLEEPS = "import time; time.sleep(2.5)"
_JOINS = "import time, hvdlite as hvd; hvd.init(); time.sleep(2.5)"


@pytest.mark.parametrize(
    "words",
    [
        ("-np", "2", sys.executable, "-c", _JOINS),
        ("-np", "2", sys.executable, "-c", "import os, time; time.sleep(1.5); os.execvp('sleep', ['sleep', '1'])"),
        ("-np", "1", sys.executable, "-c", _SLEEPS),
        ("--quiet", "-np", "2", sys.executable, "-c", _SLEEPS),
        # Without the descriptors of its parent it has no black box.
        (
            "-np",
            "2",
            sys.executable,
            "-c",
            f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_JOINS!r}])",
        ),
    ],
)
def test_without_a_collective_there_is_no_line(words: tuple[str, ...]) -> None:
    ended = run(*words, **SHOWN)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_ranks_that_did_nothing_together_are_reported_once() -> None:
    command = (sys.executable, "-c", _SLEEPS)
    ended = run("--no-horovod-compat", "-np", "2", "sh", "-c", '"$@"; true', "sh", *command, **SHOWN)
    assert (ended.returncode, ended.stdout) == (0, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("hvdrun: no rank called init(), and none was seen to communicate: each of the 2 ran the ")
    assert "the Python of the ranks has hvdlite, and leave out --no-horovod-compat" in line


def test_rank_0_says_it_where_hvdrun_did_not_start_the_job(tmp_path: Path) -> None:
    program = _WAITING.replace("hvd.init()", "hvd.init()\ntime.sleep(2.0)")
    environment = {**os.environ, **SHOWN, "HVDLITE_LOG_LEVEL": "info"}
    command = [sys.executable, _script(tmp_path, program), "1"]
    for level, lines in (("info", 1), ("warning", 0)):
        environment["HVDLITE_LOG_LEVEL"] = level
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
        assert ended.returncode == 0, ended.stderr
        found = re.findall(r"hvdlite\[0\] INFO: time \d\.\d s: compute \d+ %", ended.stderr)
        assert len(found) == lines, ended.stderr


_STUCK = """
import ctypes, time
import numpy as np
import hvdlite as hvd

hvd.init()
hvd.barrier()
if hvd.rank() == 1:
    {stuck}
hvd.allreduce(np.ones(3), name="never")
"""


@pytest.mark.parametrize("stuck", ["time.sleep(600)", "ctypes.PyDLL(None).sleep(600)"])
def test_a_wait_that_ends_with_the_job_is_for_the_rank_that_never_came(tmp_path: Path, stuck: str) -> None:
    """Also if that cannot note any more what it does, because native code holds the GIL from the first second on."""
    limit = {"HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "3"}
    ended = run("-np", "3", sys.executable, _script(tmp_path, _STUCK.format(stuck=stuck)), **SHOWN, **limit)
    assert ended.returncode != 0
    wall_s, percentages, slowest = _read(ended.stderr)
    assert percentages["waiting"] >= 100 * 3.0 * 2 / 3 / wall_s - 1
    assert percentages["compute"] >= 100 * 3.0 * 1 / 3 / wall_s - 1
    assert slowest == "1"
