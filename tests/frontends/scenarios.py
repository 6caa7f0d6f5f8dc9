"""Scenarios of the front ends whose ranks have torch."""

from __future__ import annotations

import importlib
from collections.abc import Collection

import torch

from hvdlite.compat import install_as_horovod
from tests.harness.forkserver import TORCH
from tests.harness.scenarios import Report, Scenarios, launch_ranks, run

__all__ = ["AsHorovod", "Report", "Scenarios", "assert_close", "launch", "run", "seeded"]


class AsHorovod(Scenarios):
    """Scenarios of ranks where hvdlite stands for Horovod; ``hvdlite.torch`` is ``horovod.torch`` there."""

    def run(self, without: Collection[str] = ()) -> Report:
        install_as_horovod()
        importlib.import_module("horovod.torch")
        return super().run(without)


def launch(ranks: int, module: str) -> Report:
    """Runs the scenarios of ``module`` on ``ranks`` ranks; what each of them raised on any rank.

    A job of one runs here, without a process to start.
    """
    return run(module) if ranks == 1 else launch_ranks(ranks, module, server=TORCH)


def seeded(seed: int) -> torch.Generator:
    """Makes random numbers where tensors are made: CUDA's own on a GPU, and those of CPUs for fakes."""
    return torch.Generator(torch.get_default_device() if torch.backends.cuda.is_built() else "cpu").manual_seed(seed)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float | None = None) -> None:
    """Same dtype and shape, and equal within ``tolerance``, by default a few roundings of the dtype.

    torch.testing.assert_close is the same and imports sympy, which takes every worker a second.
    """
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if tolerance is None:
        tolerance = 4 * torch.finfo(actual.dtype).eps if actual.dtype.is_floating_point else 0.0
    assert torch.allclose(actual, expected, rtol=tolerance, atol=tolerance), f"{actual} is not {expected}"
