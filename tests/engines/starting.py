"""Starts jobs with the engines themselves, and reads what their ranks wrote."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.harness.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
JOB = str(ROOT / "tests/engines/job.py")

needs_open_mpi = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="mpirun is missing; install Open MPI (openmpi-bin)"
)
needs_hydra = pytest.mark.skipif(
    shutil.which("mpiexec.hydra") is None, reason="mpiexec.hydra is missing; install MPICH"
)

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="Dask is missing; install distributed"
)


def torchrun(*options: str) -> list[str]:
    """The command of torchrun, up to its options."""
    return [sys.executable, "-m", "torch.distributed.run", *options]


def mpirun(ranks: int) -> list[str]:
    """The command of Open MPI for ``ranks`` ranks here, up to the program and its arguments.

    Every mpirun gets a session directory of its own. All of a user share one by default, and one that ends removes it
    while another starts in it, which then fails.
    """
    own = ["sh", "-c", 'exec mpirun --mca orte_tmpdir_base "$0/$$" "$@"', _sessions().name]
    return [*own, "-np", str(ranks), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", sys.executable]


@cache
def _sessions() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="open-mpi-")


def mpiexec(ranks: int) -> list[str]:
    """The command of MPICH for ``ranks`` ranks here, up to the program and its arguments."""
    return ["mpiexec.hydra", "-n", str(ranks), sys.executable]


def inside_hvdrun(ranks: int, command: Sequence[str]) -> list[str]:
    """``command`` as the one that hvdrun starts as each of its ``ranks``."""
    return [sys.executable, "-m", "hvdlite.launcher.cli", "-np", str(ranks), *command]


def start(
    command: Sequence[str], environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.Popen[str]:
    """Starts a job, in ``folder`` if there is one; `lines` waits for it."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **(environ or {})}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    )


def outputs(job: subprocess.Popen[str], *, succeeds: bool = True) -> tuple[str, str]:
    """All of stdout and stderr, once the job has ended. It is killed at the deadline."""
    try:
        out, err = job.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        job.kill()
        out, err = job.communicate()
        raise AssertionError(f"{job.args} did not end\n{out}\n{err}") from None
    assert (job.returncode == 0) == succeeds, f"{job.args} ended with code {job.returncode}\n{out}\n{err}"
    return out, err


def lines(job: subprocess.Popen[str], *, succeeds: bool = True) -> tuple[list[dict[str, Any]], str]:
    """Waits for the job to end. Returns the ranks' lines, sorted, and all of stderr."""
    out, err = outputs(job, succeeds=succeeds)
    told = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return sorted(told, key=str), err


def run(
    command: Sequence[str], environ: Mapping[str, str] | None = None, *, succeeds: bool = True
) -> tuple[list[dict[str, Any]], str]:
    """`start` and `lines`."""
    return lines(start(command, environ), succeeds=succeeds)
