"""``hvdlite.bench --train keras``, with a small model: its rows, and that both systems do the same. No time decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.harness import process_ranks
from tests.harness.benchmarks import rows_of
from tests.harness.forkserver import TENSORFLOW


def _train(*options: str) -> tuple[int, list[Any]]:
    """Runs the benchmark; its exit code, and the weights of its models at the end."""
    from hvdlite.bench.cli import main
    from hvdlite.bench.training import with_keras

    make_model, models = with_keras.make_model, []

    def make() -> Any:
        models.append(make_model())
        return models[-1]

    with_keras.SIZES = with_keras.Sizes(vocabulary=50, width=8, layers=1, heads=2)
    with_keras.make_model = make
    return main(options), [model.get_weights() for model in models]


def test_training(tmp_path: Path) -> None:
    file, table = tmp_path / "rows", tmp_path / "table.md"
    options = ("--train", "keras", "--iters", "2", "--json", str(file), "--markdown", str(table))
    outcomes = process_ranks(2, _train, *options, server=TENSORFLOW)
    (code, weights), (other_code, other_weights) = (outcome.result() for outcome in outcomes)
    assert (code, other_code) == (0, 0), outcomes[0].output
    rows = rows_of(file, [line for line in outcomes[0].output.splitlines() if line[:1] in ("#", " ")])
    assert [row.system for row in rows] == ["bare", "hvdlite", "strategy"]
    assert {(row.op, row.ranks, row.algbw_GBps) for row in rows} == {("train keras", 2, None)}
    assert [line.count("|") for line in table.read_text().splitlines()[-5:]] == [6] * 5

    bare, own, strategy = weights[:3]
    assert len(own) == 16 + 3
    assert {row.bytes for row in rows} == {sum(weight.nbytes for weight in own)}
    for weight, wanted in zip(own, strategy, strict=True):
        np.testing.assert_allclose(weight, wanted, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(weights[1] + weights[2], other_weights[1] + other_weights[2], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert any((mine != theirs).any() for mine, theirs in zip(bare, other_weights[0], strict=True))
