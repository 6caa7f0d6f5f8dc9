"""Starts programs that were written for Horovod."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.engines.starting import outputs, start

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


def hvdrun(ranks: int, *options: str) -> list[str]:
    """The command of hvdrun for ``ranks`` ranks, up to the program and its arguments."""
    return [sys.executable, "-m", "hvdlite.launcher.cli", "-np", str(ranks), *options]


def run(command: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None) -> str:
    """Runs ``command`` in ``folder`` and returns its output."""
    return "".join(outputs(start(command, {**QUIET, **(environ or {})}, folder)))
