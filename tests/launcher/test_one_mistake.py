"""The output of a job in which all ranks make the same mistake."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from tests.launcher.hvdrun import run

SCRIPT = """
import os, sys, time, traceback
rank, folder = int(os.environ["RANK"]), os.path.dirname(__file__)
def wait_for(count):
    while sum(name.startswith("done.") for name in os.listdir(folder)) < count: time.sleep(0.01)
def mistake():
    raise ValueError(f"rank {rank}, process {os.getpid()}, {object()}")
wait_for(min(rank, 1))
try:
    mistake()
except ValueError:
    traceback.print_exc()
open(os.path.join(folder, f"done.{rank}"), "w").close()
wait_for(5)
sys.exit(1)
"""


def test_it_is_shown_once_and_files_have_all_of_it(tmp_path: Path) -> None:
    script, logs = tmp_path / "train.py", tmp_path / "logs"
    script.write_text(SCRIPT)
    ended = run("-np", "5", "--output-filename", str(logs), sys.executable, "-S", str(script))
    assert ended.returncode == 1
    above, box = ended.stderr.split("+-- hvdrun", 1)
    lines = [line for line in above.splitlines() if ": the same" not in line]
    assert [line for line in lines if "<stderr>:ValueError" in line]
    assert all(line.startswith("[0]<stderr>:") for line in lines)
    told = re.findall(r"^\[([\d, -]+)\]: the same", above, flags=re.MULTILINE)  # once, unless they take long
    assert {rank for rank in range(5) if any(rank in numbers(ranks) for ranks in told)} == {1, 2, 3, 4}
    assert len(ended.stderr.splitlines()) - len(told) < 29
    assert "|   ValueError: rank " in box
    assert "|   Traceback" not in box, "it stands just above"
    for rank in range(5):
        text = (logs / f"rank.{rank}/stderr").read_text()
        assert text.startswith("Traceback (most recent call last):\n")
        assert f"ValueError: rank {rank}, process " in text


def numbers(ranks: str) -> set[int]:
    """Those that a text such as ``1-3, 5`` names."""
    ends = [[int(end) for end in part.split("-")] for part in ranks.split(",")]
    return {number for part in ends for number in range(part[0], part[-1] + 1)}


def test_a_python_without_hvdlite_is_named_with_the_remedy() -> None:
    ended = run("-np", "2", sys.executable, "-IS", "-c", "import hvdlite")
    assert ended.returncode == 1
    assert f"| hint: {sys.executable} has no hvdlite; start the ranks with {sys.executable}," in ended.stderr
    assert f"|   or install it there: {sys.executable} -m pip install FOLDER" in ended.stderr
    ended = run("-np", "1", sys.executable, "-IS", "-m", "hvdlite.bench")
    assert f"| hint: {sys.executable} has no hvdlite; " in ended.stderr
    ended = run("-np", "1", "sh", "-c", f"{shlex.quote(sys.executable)} -IS -c 'import hvdlite.torch'")
    assert "| hint: the Python of that rank has no hvdlite; " in ended.stderr


def test_the_box_has_the_end_of_stdout_where_stderr_is_empty(tmp_path: Path) -> None:
    program = "seq 1 30; echo only here; exit 3"
    ended = run("-np", "1", "--output-filename", str(tmp_path), "sh", "-c", program)
    lines = ended.stderr.splitlines()
    assert "| the last lines of its stdout:" in lines
    assert "|   30" in lines, "stdout may be elsewhere"
    assert "|   only here" in lines
    assert f"| its log: {tmp_path}/rank.0/stdout" in lines
    ended = run("-np", "1", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert "| the last lines of its stderr:\n|   err\n" in ended.stderr
    assert "|   out" not in ended.stderr


DISAGREES = """
import hvdlite as hvd, numpy as np
hvd.init()
def train():
    hvd.allreduce(np.ones(3 + hvd.rank()), name="loss")
train()
"""


def test_hvdlites_own_frames_are_no_part_of_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DISAGREES)
    ended = run("-np", "3", sys.executable, str(script))
    assert "ranks disagree about the shape of tensor 'loss'" in ended.stderr
    assert "in train" in ended.stderr
    assert "hvdlite/" not in ended.stderr
    assert len(ended.stderr.splitlines()) < 2 * 6 + 6
    full = run("-np", "3", sys.executable, str(script), HVDLITE_TRACEBACK="full")
    assert "hvdlite/ops/handles.py" in full.stderr
