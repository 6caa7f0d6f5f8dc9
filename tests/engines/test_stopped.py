"""A rank that is stopped while the others wait for it in init() is named by one of them, whatever has started it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines.starting import ROOT, mpiexec, mpirun, needs_hydra, needs_open_mpi, torchrun
from tests.harness.patience import PATIENCE_S
from tests.launcher.hvdrun import COMMAND, read_until

# Rank 1 stops itself before init(), or in its first or its last round; 0 and 2 wait for it.
SCRIPT = """
import os, signal, sys, threading
import numpy as np
import hvdlite as hvd
from hvdlite.launched_by.detect import detect
from hvdlite import session
from hvdlite.rendezvous import client

def stop():
    if {**detect(os.environ), **os.environ}["HVDLITE_RANK"] == "1":
        # To this thread: sent to the process, another thread takes it, and this one goes on for a moment.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

class StopAndExchange(client.Exchanges):
    def __call__(self, offer):
        if self._round == int(sys.argv[1]):
            stop()
        return super().__call__(offer)

if sys.argv[1] == "before":
    stop()
else:
    session.Exchanges = StopAndExchange
hvd.init()
os.write(1, b"total %d\\n" % hvd.allreduce(np.ones(3), op=hvd.Sum)[0])
"""
LINE = re.compile(
    rb"hvdlite\[(\d)\] WARNING: rank (\d), process (\d+), is stopped \(SIGSTOP, a debugger\); ranks that wait"
)
BEFORE = "import hvdlite, subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"


def hvdrun(*words: str) -> list[str]:
    return [*COMMAND, "-np", "3", *words]


def slurm(script: str, when: str) -> list[str]:
    """Three processes with the variables that srun sets for the tasks of a step; the shell ends with the last one."""
    step = f"SLURM_JOB_ID={os.getpid()} SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=3"
    task = f"SLURM_PROCID=$task SLURM_LOCALID=$task {shlex.join([sys.executable, script, when])} &"
    return ["sh", "-c", f"export {step}; for task in 0 1 2; do {task} done; wait"]


STARTED_BY: dict[str, Callable[[str, str], list[str]]] = {
    "torchrun": lambda script, when: torchrun("--nproc-per-node", "3", script, when),
    "mpirun": lambda script, when: [*mpirun(3), script, when],
    "mpiexec": lambda script, when: [*mpiexec(3), script, when],
    "srun": slurm,
    "bash": lambda script, when: hvdrun("bash", "-c", f"{shlex.join([sys.executable, script, when])}; exit $?"),
    "launcher": lambda script, when: hvdrun(sys.executable, "-c", BEFORE, script, when),
}
CASES = [
    ("torchrun", "before"),
    pytest.param("mpirun", "before", marks=needs_open_mpi),
    pytest.param("mpiexec", "before", marks=needs_hydra),
    ("srun", "0"),
    ("bash", "3"),
    ("launcher", "before"),  # such as accelerate launch
]


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The job, in a session of its own, all of which is killed if it has not ended."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    job = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield job
    finally:
        if job.poll() is None:
            job.kill()
        job.communicate()


@pytest.mark.parametrize(("who", "when"), CASES)
def test_it_is_named_and_all_go_on_with_it(who: str, when: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with running(STARTED_BY[who](str(script), when)) as job:
        assert job.stdout is not None
        told = read_until(job.stdout.fileno(), lambda found: LINE.search(found) is not None)
        ((teller, rank, pid),) = LINE.findall(told)
        assert teller in b"02"  # whichever of them came first has seen nobody before it
        assert rank == b"1"
        assert b"train.py" in Path(f"/proc/{int(pid)}/cmdline").read_bytes()
        os.kill(int(pid), signal.SIGCONT)
        read_until(job.stdout.fileno(), lambda found: found.count(b"total 3") == 3)
        assert job.wait(PATIENCE_S) == 0
