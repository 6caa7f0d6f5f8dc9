"""Ranks on the workers of a Dask cluster: `dask_scenarios` in one process, and what needs no cluster."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import hvdlite.dask
from tests.engines.starting import ROOT
from tests.harness.patience import PATIENCE_S
from tests.house.blocks import Block, runnable_blocks

pytest.importorskip("distributed", reason="needs Dask; install distributed")

from tests.engines.dask_scenarios import SCENARIOS


@functools.cache
def errors() -> dict[str, str]:
    """What each scenario says; they share a cluster, and the next goes on after one that fails."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.engines.dask_scenarios"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "DASK_TEMPORARY_DIRECTORY": folder},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
        )
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    assert done.returncode == 0, done.stderr
    return {each["name"]: each["error"] for each in told}


@pytest.mark.parametrize("name", SCENARIOS)
def test_dask(name: str) -> None:
    assert errors()[name] == "", errors()[name]


@pytest.mark.parametrize("block", runnable_blocks(ROOT / "docs/clusters.md", framework="dask"), ids=str)
def test_page(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(block.text)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "DASK_TEMPORARY_DIRECTORY": str(tmp_path)}
    done = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{'weight': ")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"args": 10}, r"args must be a list or tuple of the function's arguments, got int; one is \(argument,\)"),
        ({"kwargs": "ten"}, "kwargs must be a dict of the function's named arguments, got str"),
        ({"num_proc": 0}, "num_proc must be the number of ranks, at least 1; got 0"),
        ({"num_proc": "two"}, "num_proc must be the number of ranks, at least 1; got 'two'"),
    ],
)
def test_arguments_that_cannot_be_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        hvdlite.dask.run(None, print, **given)  # type: ignore[arg-type]


def test_without_dask_the_error_says_what_to_install() -> None:
    program = "import sys; sys.modules['distributed'] = None; import hvdlite.dask as d; d.run(None, print)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert "hvdlite.dask needs the package distributed: pip install 'hvdlite[dask]'" in done.stderr
