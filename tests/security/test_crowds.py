"""Thousands of connections of another user and from another address, while a job trains, joins anew and makes a set."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.harness.patience import PATIENCE_S, PROMPT_S
from tests.harness.users import NOBODY, in_child, needs_root
from tests.house.tree import ROOT
from tests.launcher.hvdrun import COMMAND
from tests.security.crowd import call_at, tcp_listeners, unix_listeners

LIMITED = ("sh", "-c", 'ulimit -n 1024; exec "$@"', "sh")
RUN = """
import sys
from pathlib import Path
from hvdlite.running import run
from tests.security.crowd import stay_until_stopped
print(run(stay_until_stopped, (Path(sys.argv[1]),), np=2))
"""


@pytest.mark.alone
@pytest.mark.parametrize(
    ("count", "over_s", "set_s"),  # within which a process set is made
    [(1500, 4.0, PROMPT_S), pytest.param(5000, 20.0, 2.0, marks=(pytest.mark.faults, pytest.mark.alone))],
)
@needs_root
def test_a_crowd_stops_nobody(count: int, over_s: float, set_s: float, tmp_path: Path) -> None:
    hvdrun = (*COMMAND, "-np", "4")
    ranks = (sys.executable, "-m", "tests.security.crowd", str(tmp_path))
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    with (
        subprocess.Popen([*LIMITED, *hvdrun, *ranks], **outputs) as job,  # type: ignore[call-overload]
        subprocess.Popen([*LIMITED, sys.executable, "-c", RUN, str(tmp_path)], **outputs) as caller,  # type: ignore[call-overload]
        ThreadPoolExecutor() as threads,
    ):
        try:
            told = [job.stdout.readline() for _ in range(4)]
            assert all("ready" in line for line in told), told
            attack = partial(in_child, call_at)
            crowds = (
                threads.submit(attack, unix_listeners, count, over_s, uid=NOBODY),
                threads.submit(attack, partial(tcp_listeners, job.pid), count, over_s),
            )
            time.sleep(over_s / 2)
            (tmp_path / "again").touch()
            again = [job.stdout.readline().split() for _ in range(4)]
            made = [crowd.result() for crowd in crowds]
        except BaseException:
            job.kill()  # what they say at their end, they say only if all went well
            caller.kill()
            raise
        finally:
            (tmp_path / "stop").touch()
            said, complained = job.communicate(timeout=PATIENCE_S)
            returned, failed = caller.communicate(timeout=PATIENCE_S)
    assert (job.returncode, said.count("steps")) == (0, 4), (again, said, complained)
    assert returned == "[0, 1]\n", failed
    assert min(made) > count / 2  # while the ranks join anew, there is less to connect to
    for line in again:
        assert float(line[1]) < set_s, again
