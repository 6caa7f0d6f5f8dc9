"""The ancestor of a process that set a variable."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.harness.patience import PATIENCE_S


def test_what_started_an_inner_job_has_another_value() -> None:
    program = "import os, subprocess, sys; sys.argv[1:] and subprocess.run(sys.argv[1:]); "
    program += "from hvdlite.host.ancestor import started_without as found; "
    program += "print(os.getpid(), found('OF_A_JOB'), found('OF_A_JOB', 0, 'inner'), flush=True)"
    python = [sys.executable, "-c", program]
    command = [*python, "env", "OF_A_JOB=inner", *python]
    environ = {**os.environ, "OF_A_JOB": "outer"}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S)
    (_, *of_inner), (outer, *_) = (line.split() for line in ended.stdout.splitlines())
    assert of_inner == [str(os.getpid()), outer], ended.stderr
