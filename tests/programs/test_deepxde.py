"""DeepXDE solves an equation alone, and on two ranks with half of the points each."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hvdlite.compat import FOLDER
from tests.engines.starting import ROOT, mpirun, needs_open_mpi
from tests.programs.starting import hvdrun, run

POISSON = str(ROOT / "tests/programs/poisson.py")
BACKEND = {"DDE_BACKEND": "tensorflow.compat.v1"}
LENT = {**BACKEND, "PYTHONPATH": os.pathsep.join([FOLDER, str(ROOT)])}
# DeepXDE imports Horovod where it finds this variable of Open MPI.
HVDRUN = [*hvdrun(2, "-x", "OMPI_COMM_WORLD_SIZE=2"), sys.executable]
PRECISE = 0.2
"""The relative error of a solution, which all here stay far below; a network that learned nothing has about 1."""


def solve(folder: Path, command: list[str], environ: dict[str, str], scaling: str, points: int) -> list[dict[str, Any]]:
    """What each rank ended with."""
    run([*command, POISSON, scaling, str(points)], folder, environ)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank.*.json"))]


def test_one_rank_solves_the_equation(tmp_path: Path) -> None:
    (rank,) = solve(tmp_path, [sys.executable], BACKEND, "weak", 32)
    assert rank["error"] < PRECISE


@pytest.mark.parametrize(
    ("command", "environ", "scaling", "points", "share"),
    [
        pytest.param(HVDRUN, BACKEND, "weak", 16, 18, id="hvdrun-weak"),
        pytest.param(mpirun(2), LENT, "weak", 16, 18, id="mpirun-weak", marks=needs_open_mpi),
        pytest.param(mpirun(2), LENT, "strong", 32, 17, id="mpirun-strong", marks=needs_open_mpi),
    ],
)
def test_two_ranks_solve_it_together(
    command: list[str], environ: dict[str, str], scaling: str, points: int, share: int, tmp_path: Path
) -> None:
    """``share`` is how many points each rank has, which counts the two ends of the interval in."""
    ranks = solve(tmp_path, command, environ, scaling, points)
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    for rank in ranks:
        assert rank["error"] < PRECISE
        assert rank["share"] == share
