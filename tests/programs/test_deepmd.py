"""DeePMD-kit trains alone and on two ranks, restarts, freezes and tests; alone it finds neither Horovod nor hvdlite."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.engines.starting import ROOT
from tests.programs import molecules
from tests.programs.starting import hvdrun, run

ON_RANKS = [sys.executable, str(ROOT / "tests/programs/deepmd_rank.py")]
WITHOUT_HVDLITE = """
import sys
sys.modules.update(horovod=None, hvdlite=None)
from deepmd.main import main
main(sys.argv[1:])
"""


def dp(folder: Path, *arguments: str, ranks: int = 1) -> str:
    command = [*hvdrun(ranks), *ON_RANKS] if ranks > 1 else [sys.executable, "-c", WITHOUT_HVDLITE]
    return run([*command, "--tf", *arguments], folder)


def curve(folder: Path) -> np.ndarray:
    """What rank 0 wrote while it trained: a row for each 50 steps, and one for the beginning."""
    return np.genfromtxt(folder / "lcurve.out", names=True)


def weights(folder: Path) -> list[dict[str, np.ndarray]]:
    """Of both ranks, which must be equal."""
    ranks = [dict(np.load(folder / f"rank.{rank}.npz")) for rank in range(2)]
    np.testing.assert_equal(ranks[1], ranks[0])
    return ranks[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The folders in which one rank and two ranks have trained with the same global batch."""
    folders = {ranks: tmp_path_factory.mktemp(f"{ranks}-ranks") for ranks in (1, 2)}
    for ranks, folder in folders.items():
        molecules.write(folder)
        dp(folder, "train", molecules.write_input(folder, batch_size=4 // ranks), ranks=ranks)
    return folders


def copy(folder: Path, room: Path) -> Path:
    return shutil.copytree(folder, room / "copied", symlinks=True)


def test_two_ranks_learn_what_one_learns(trained: dict[int, Path]) -> None:
    alone, together = (curve(trained[ranks])[-1] for ranks in (1, 2))
    assert alone["step"] == together["step"] == molecules.STEPS
    assert together["rmse_val"] < 1.25 * alone["rmse_val"]


def test_both_ranks_end_with_equal_weights(trained: dict[int, Path]) -> None:
    assert len(weights(trained[2])) > 20


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_training_goes_on_with_another_number_of_ranks(
    before: int, after: int, trained: dict[int, Path], tmp_path: Path
) -> None:
    folder = copy(trained[before], tmp_path)
    more = molecules.write_input(folder, batch_size=4 // after, steps=molecules.STEPS + 50)
    dp(folder, "train", "--restart", "model.ckpt", more, ranks=after)
    *_, stopped, restarted, last = curve(folder)
    assert [row["step"] for row in (stopped, restarted, last)] == [200, 200, 250]
    for error in ("rmse_e_val", "rmse_f_val"):
        assert restarted[error] == stopped[error]
    if after == 2:
        weights(folder)


def test_what_two_ranks_trained_is_frozen_and_tested(trained: dict[int, Path], tmp_path: Path) -> None:
    folder = copy(trained[2], tmp_path)
    dp(folder, "freeze", "-o", "model.pb")
    told = dp(folder, "test", "-m", "model.pb", "-s", "valid")
    energy, force = (float(re.findall(rf"{what} *: (\S+)", told)[-1]) for what in ("Energy RMSE/Natoms", "Force  RMSE"))
    last = curve(folder)[-1]
    assert (energy, force) == pytest.approx((last["rmse_e_val"], last["rmse_f_val"]), rel=0.01)
