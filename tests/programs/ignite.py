"""Runs pytorch-ignite's own Horovod tests: ``python -m tests.programs.ignite [arguments of pytest]``.

They come with its source distribution. They call ``horovod.run`` in the process of pytest, replace ``PYTHONPATH``, and
start ``horovodrun``, so they run in an environment in which hvdlite has these two names for good.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from hvdlite.compat import FOLDER
from tests.programs.below import put_below

SOURCES = "pytorch-ignite==0.5.5 --hash=sha256:2c14de75c939a3cc06d2e7de00b1e0a261917ef9bd874dac2e69d789dfa9cc64"
HOROVODRUN = """#!/bin/sh
exec "$(dirname "$0")/python" -m hvdlite.launcher.cli "$@"
"""


def fetch(folder: Path) -> None:
    """Unpacks the tests into ``folder``."""
    wanted = folder / "requirements.txt"
    wanted.write_text(SOURCES)
    options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--require-hashes", "--dest", str(folder)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "download", *options, "--requirement", str(wanted)], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")


def environment(folder: Path) -> Path:
    """Makes an environment in ``folder`` on top of this one, and returns its programs' folder."""
    venv.create(folder, symlinks=True)
    put_below(folder, FOLDER)
    programs = folder / "bin"
    (programs / "horovodrun").write_text(HOROVODRUN)
    (programs / "horovodrun").chmod(0o755)
    return programs


def prepare(folder: Path, arguments: Sequence[str]) -> tuple[list[str], dict[str, str], Path]:
    """Returns the command that runs the tests, its variables, and the folder in which it does so."""
    fetch(folder)
    programs = environment(folder / "environment")
    (sources,) = folder.glob("pytorch_ignite-*/")
    options = ["-m", "pytest", "-p", "no:cacheprovider", "-k", "horovod or hvd", "--continue-on-collection-errors"]
    variables = {"PATH": os.pathsep.join([str(programs), os.environ["PATH"]]), "PYTHONPATH": ""}
    return [str(programs / "python"), *options, *arguments], variables, sources


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        command, variables, sources = prepare(Path(name), sys.argv[1:])
        ended = subprocess.run(command, env={**os.environ, **variables}, cwd=sources, check=False)
    sys.exit(ended.returncode)
