"""A child of a rank is not that rank, and hears so at once; whoever merely starts a rank does not matter."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import hvdlite as hvd
from hvdlite.errors import HorovodInternalError
from tests.harness import ProcessRanks, pause_at, reached
from tests.harness.patience import PATIENCE_S
from tests.launcher import hvdrun

_JOINS = "import numpy as np, hvdlite as hvd; hvd.init(); print(hvd.allreduce(np.ones(1), op=hvd.Sum)); hvd.shutdown()"
_CHILD = [sys.executable, "-c", _JOINS]
_BELOW = [sys.executable, "-c", f"import subprocess, sys; sys.exit(subprocess.call({_CHILD!r}))"]
_BELOW_BASH = ["bash", "-c", '"$0" "$@"; exit $?', *_BELOW]


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.stdout + done.stderr


def _has_descriptor(name: str) -> bool:
    """True if this process has a file of this name open. Other threads may open and close files meanwhile."""
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if name in os.readlink(each):
                return True
    return False


def _child_of_init(told: list[str]) -> None:
    while not _has_descriptor("hvdlite-rank"):
        time.sleep(0.01)
    told.append(_run(_CHILD))
    reached("told")


def _children() -> list[str]:
    """Returns the results of children of init, of a session, and after it; the last meet those of other ranks."""
    told: list[str] = []
    early = threading.Thread(target=_child_of_init, args=(told,))
    if os.environ["HVDLITE_RANK"] == "1":
        early.start()  # rank 0 comes when it has ended
    else:
        pause_at("late")
    hvd.init()
    told += [_run(command) for command in (_CHILD, _BELOW, _BELOW_BASH)]
    child = os.fork()
    if child == 0:
        try:
            hvd.init()
            os._exit(1)
        except HorovodInternalError:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    hvd.barrier()
    hvd.shutdown()
    return [*told, _run(_CHILD)]


def test_a_child_is_refused_as_long_as_its_parent_is_the_rank() -> None:
    with ProcessRanks(2, _children) as ranks:
        ranks.wait_for("told", 1)
        ranks.release(0)
        outcomes = ranks.join()
    for outcome in outcomes:
        *within, after = outcome.result()
        assert len(within) == 3 + outcome.rank
        for told in within:
            assert f"which is rank {outcome.rank} itself" in told
            assert 'if __name__ == "__main__"' in told
        assert after == "[2.]\n"


_LAUNCHES = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {_JOINS!r}]))"


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "-c", '"$0" "$@"; exit $?', *_CHILD],
        [sys.executable, "-c", _LAUNCHES],  # as accelerate launch does
        [sys.executable, "-m", "pdb", "-c", "continue", "-c", "quit", "SCRIPT"],
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "xdist", "-n", "1", "-p", "no:cacheprovider", "TEST"],
    ],
    ids=["bash", "launcher", "pdb", "xdist"],
)
def test_what_starts_a_rank_is_not_the_rank(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_JOINS)
    (tmp_path / "test_it.py").write_text(f"def test_it():\n    {_JOINS}\n    assert hvd.__version__\n")
    places = {"SCRIPT": str(tmp_path / "script.py"), "TEST": str(tmp_path / "test_it.py")}
    done = hvdrun.run("-np", "2", *(places.get(word, word) for word in command))
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("[2.]" in done.stdout) or done.stdout.count("1 passed") == 2


def test_a_rank_may_start_another_job() -> None:
    inner = [*hvdrun.COMMAND, "-np", "2", *_CHILD]
    program = f"import subprocess, sys, hvdlite as hvd; hvd.init(); sys.exit(subprocess.call({inner!r}))"
    done = hvdrun.run("-np", "1", sys.executable, "-c", program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("[2.]") == 2
