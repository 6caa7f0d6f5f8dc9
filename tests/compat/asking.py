"""Programs that ask for ``horovod``: each in an interpreter of its own, or in a fork of one with what it imports."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout

from tests.harness import process_ranks
from tests.harness.forkserver import PLAIN, ForkServer
from tests.harness.patience import PATIENCE_S

INSTALL = "from hvdlite.compat import install_as_horovod; install_as_horovod()\n"


def python(*arguments: str, **environ: str) -> str:
    """Returns the output of a fresh interpreter. Fails with its errors if it fails."""
    ended = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environ}, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def forked(program: str, path: str = "", server: ForkServer = PLAIN) -> str:
    """Returns what ``program`` prints in a fork of ``server``, as if it had started with ``path`` in PYTHONPATH."""
    (outcome,) = process_ranks(1, _run, program, path, environ={"PYTHONPATH": path}, server=server)
    printed: str = outcome.result()
    return printed.strip()


def _run(program: str, path: str) -> str:
    sys.path[1:1] = path.split(os.pathsep) if path else []
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    return printed.getvalue()
