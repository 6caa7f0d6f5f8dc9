"""The recipes of the documentation run on two ranks, and leave them with the same weights.

Each goes on from the first one of its page, so a recipe runs after that, in variables of its own.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from typing import Any

import torch
from torch import nn

import hvdlite.torch as hvd
from tests.frontends.scenarios import Report, Scenarios
from tests.house.blocks import Block, runnable_blocks
from tests.house.tree import ROOT, files

scenario = Scenarios(ranks=[2])


def run_block(first: Block, block: Block) -> None:
    names: dict[str, Any] = {"__name__": "recipe"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for each in dict.fromkeys((first, block)):
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * each.line + each.text, str(each.path), "exec"), names)
    for name, module in names.items():
        if isinstance(module, nn.Module):
            weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
            least, most = hvd.allreduce(weights, op=hvd.Min), hvd.allreduce(weights, op=hvd.Max)
            assert torch.equal(least, most), f"{name} differs"
            assert not torch.isnan(weights).any()


for page in [ROOT / path for path in files(".md")]:
    blocks = list(runnable_blocks(page, on_ranks=True))
    for block in blocks:

        def run(first: Block = blocks[0], block: Block = block) -> None:
            run_block(first, block)

        run.__name__ = str(block)
        scenario(run)


def test_torch_pages(report: Report, name: str) -> None:
    assert report[name] == ""
