"""The code in the pages on JAX and on Keras runs on two ranks. Each block goes on from those before it."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from tests.harness.scenarios import Report
from tests.house.blocks import runnable_blocks
from tests.house.tree import ROOT, files
from tests.keras.training import KerasScenarios

BACKENDS = ("jax",)
scenario = KerasScenarios(ranks=(2,))


for page in [ROOT / path for path in files(".md")]:
    names: dict[str, Any] = {"__name__": page.stem}
    for block in [*runnable_blocks(page, framework="jax"), *runnable_blocks(page, framework="keras")]:

        def run(block: Any = block, names: dict[str, Any] = names) -> None:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * block.line + block.text, str(block.path), "exec"), names)

        run.__name__ = str(block)
        scenario(run)


def test_page(report: Report, name: str) -> None:
    assert report[name] == ""
