"""Hosts that schedulers and operators have given to a job: hvdrun starts its ranks there without -H."""

from __future__ import annotations

import os
from pathlib import Path

from tests.harness import FAKES
from tests.launcher.hvdrun import run
from tests.unit.launcher.where.test_hostlists import FILES, MARKS


def test_hvdrun_starts_on_these_hosts_over_ssh_unless_the_user_names_others(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(FILES["PBS_NODEFILE"])
    environ = {**MARKS, "PBS_NODEFILE": str(tmp_path / "hosts"), "PATH": f"{FAKES}:{os.environ['PATH']}"}
    program = ("sh", "-c", "echo $RANK on $HVDLITE_HOSTNAME")
    ended = run(*program, **environ)
    found = sorted(line.partition(":")[2] for line in ended.stdout.splitlines())
    assert (ended.returncode, found) == (0, ["0 on a", "1 on a", "2 on b"]), ended.stderr
    ended = run("-np", "1", *program, **environ)
    assert ended.stdout == "[0]<stdout>:0 on a\n"
    ended = run("-H", "localhost:1", *program, **environ)
    assert ended.stdout == "[0]<stdout>:0 on localhost\n"


def test_a_list_that_cannot_be_used_does_not_keep_hvdrun_from_hosts_that_the_user_names() -> None:
    environ = {**MARKS, "PBS_NODEFILE": "/nowhere"}
    for words in (("doctor", "-H", "localhost"), ("-H", "localhost:1", "true")):
        ended = run(*words, **environ)
        assert ended.returncode == 0, ended.stderr


def test_a_rank_that_starts_hvdrun_stays_on_its_host(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(FILES["PBS_NODEFILE"])
    environ = {**MARKS, "PBS_NODEFILE": str(tmp_path / "hosts"), "HVDLITE_RANK": "0", "HVDLITE_SIZE": "1"}
    ended = run("-np", "1", "sh", "-c", "echo $HVDLITE_HOSTNAME", **environ)
    assert ended.stdout == "[0]<stdout>:localhost\n", ended.stderr
