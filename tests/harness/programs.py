"""Programs that ranks run as their main program, in forks of a process that has imported what they need."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from hvdlite.compat import install_as_horovod
from tests.harness.forkserver import TORCH, ForkServer
from tests.harness.processes import process_ranks


def output_of(
    ranks: int, program: Path, *options: str, cwd: Path, as_horovod: bool = False, server: ForkServer = TORCH
) -> str:
    """Runs ``program`` and returns its output on all ranks, rank by rank; ``as_horovod`` lends the name horovod.

    Fails unless the program exits with 0 on every rank.
    """
    task = (str(program), options, str(cwd), as_horovod)
    outcomes = process_ranks(ranks, run_as_main, *task, server=server)
    printed = "".join(outcome.output for outcome in outcomes)
    assert [outcome.result() for outcome in outcomes] == [0] * ranks, printed
    return printed


def run_as_main(program: str, options: tuple[str, ...], folder: str, as_horovod: bool = False) -> object:
    """Runs ``program`` in ``folder`` as the main program of this process; returns its exit code."""
    if as_horovod:
        install_as_horovod()
    os.chdir(folder)
    sys.argv = [program, *options]
    sys.path[0] = str(Path(program).parent)
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as ended:
        return ended.code or 0
    return 0
