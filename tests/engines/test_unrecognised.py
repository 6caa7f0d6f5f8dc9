"""init in a process that may be one of several, but that no known launcher has started as one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.harness.patience import PATIENCE_S

PROGRAM = """
import hvdlite as hvd
for _ in range(2):
    hvd.init()
    print(hvd.rank(), hvd.size())
    hvd.shutdown()
"""


def run(environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=PATIENCE_S)


def test_a_batch_script_of_slurm_is_a_job_of_one_that_warns_once() -> None:
    ended = run({"SLURM_JOB_ID": "3", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"})
    assert ended.stdout.split() == ["0", "1", "0", "1"], ended.stderr
    assert ended.stderr.count("this is a job of one rank in a Slurm allocation of 2 tasks") == 1


@pytest.mark.parametrize("environ", [{}, {"WORLD_SIZE": "4", "HVDLITE_SIZE": "1"}], ids=["alone", "said so"])
def test_a_job_of_one_is_silent(environ: Mapping[str, str]) -> None:
    ended = run(environ)
    assert (ended.stdout.split(), ended.stderr) == (["0", "1", "0", "1"], "")


def test_one_of_several_is_no_job_of_one() -> None:
    ended = run({"WORLD_SIZE": "4", "LOCAL_RANK": "1"})
    assert (ended.stdout, ended.returncode) == ("", 1)
    assert "ValueError: WORLD_SIZE=4 says that this process is one of several" in ended.stderr
