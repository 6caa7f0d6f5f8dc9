"""hvdrun names the rank that failed first, although the others fail because of it and may be quicker to end."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.launcher.hvdrun import run

_PROGRAM = """
import sys, time
import numpy as np
import hvdlite as hvd

hvd.init()
for step in range(1000):
    hvd.allreduce(np.ones(3), name="x")
    if step == 5 and hvd.rank() == {culprit}:
        {failure}
"""


@pytest.mark.parametrize(
    ("culprit", "failure", "code", "hint"),
    [
        (0, "raise KeyError('a bug of mine')", 1, "a bug of mine"),
        (1, "sys.exit(7)", 7, "ended with code 7"),
        (2, "import os; os._exit(9)", 9, "ended with code 9"),
    ],
    ids=["exception", "exit code", "quick exit"],
)
def test_the_culprit_is_named_and_not_a_victim(
    tmp_path: Path, culprit: int, failure: str, code: int, hint: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(_PROGRAM.format(culprit=culprit, failure=failure))
    ended = run("-np", "3", sys.executable, str(script))
    assert ended.returncode == code, ended.stderr
    box = ended.stderr[ended.stderr.index("+-- hvdrun") :]
    assert f"rank {culprit} on" in box
    assert hint in box


@pytest.mark.parametrize("stopped", [0, 2])
def test_a_rank_that_is_stopped_is_named_and_not_who_noticed(tmp_path: Path, stopped: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        _PROGRAM.format(culprit=stopped, failure="import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    )
    ended = run("-np", "3", sys.executable, str(script))
    assert ended.returncode == 1, ended.stderr
    box = ended.stderr[ended.stderr.index("+-- hvdrun") :]
    assert re.match(rf"\+-- hvdrun: rank {stopped} on \S+ was lost: its process \d+ has been stopped for \d", box), box
    assert re.search(r"\n\| rank \d on \S+ ended with code 1 because of that\n", box), box


def test_a_rank_that_does_not_submit_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_PROGRAM.format(culprit=1, failure="time.sleep(600)"))
    ended = run("-np", "3", "-x", "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS=2", sys.executable, str(script))
    assert ended.returncode == 1, ended.stderr
    box = ended.stderr[ended.stderr.index("+-- hvdrun") :]
    assert re.match(r"\+-- hvdrun: rank 1 on \S+ stalled: it did not submit x within 2 s", box), box


@pytest.mark.parametrize("how", ["sys.exit(0)", "import os; os._exit(0)"])
def test_a_rank_that_is_done_first_is_said_to_have_exited_with_0(tmp_path: Path, how: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(_PROGRAM.format(culprit=1, failure=how))
    ended = run("-np", "3", sys.executable, str(script))
    assert ended.returncode == 1, ended.stderr
    box = ended.stderr[ended.stderr.index("+-- hvdrun") :]
    assert re.match(r"\+-- hvdrun: rank 1 on \S+ exited with code 0 after 6 batches of collectives ", box), box
    assert "killed or finished first" not in box


@pytest.mark.parametrize("ends", [True, False])
def test_who_does_not_come_is_to_blame_and_not_who_waits(tmp_path: Path, ends: bool) -> None:
    script = tmp_path / "train.py"
    instead = "sys.exit(0)" if ends else "time.sleep(600)"
    script.write_text(
        f"import os, sys, time, hvdlite\nif os.environ['HVDLITE_RANK'] in '13':\n    {instead}\nhvdlite.init()\n"
    )
    ended = run("-np", "4", "--start-timeout", "1", sys.executable, str(script))
    assert ended.returncode == 1, ended.stderr
    shown, box = ended.stderr.split("+-- hvdrun: ", 1)
    fate = ": it exited with code 0" if ends else ""
    assert re.match(rf"rank 1 on \S+ did not call init\(\) within 1 s, nor did rank 3{fate} -*\n", box), box
    assert re.search(r"\n\| rank [02] on \S+ ended with code 1 because of that\n", box), box
    assert "did not call it" not in box
    assert shown.count("did not call it") == 1, shown
    assert shown.count("  File ") == 1, shown


def test_a_victim_whose_stderr_is_elsewhere_names_the_culprit(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_PROGRAM.format(culprit=1, failure="hvd.shutdown(); time.sleep(0.5); sys.exit(7)"))
    program = f"trap '' TERM; exec {shlex.join([sys.executable, str(script)])} 2>/dev/null"
    ended = run("-np", "3", "bash", "-c", program)
    assert ended.returncode == 7, ended.stderr
    assert "hvdrun: rank 1 on" in ended.stderr
