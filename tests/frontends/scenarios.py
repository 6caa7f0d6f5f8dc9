"""Many checks in one launch of worker processes, each reported as a test of its own.

The functions of a module that need several ranks run one after another in the same job. Every rank runs every scenario;
what one raises is recorded and the next goes on.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Sequence

import torch

import hvdlite.torch as hvd
from hvdlite.compat import install_as_horovod
from tests.harness import process_ranks
from tests.harness.forkserver import TORCH

Scenario = Callable[[], None]
Report = dict[str, str]


class Scenarios:
    """A decorator that collects the scenarios of a module, for jobs of so many ``ranks``, and their run on this rank.

    A module calls its only one ``scenario``. Its test takes ``report`` and ``name`` (conftest.py), and so runs for each
    number of ranks and each scenario.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = ranks
        self._functions: dict[str, Scenario] = {}

    def __call__(self, scenario: Scenario) -> Scenario:
        self._functions[scenario.__name__] = scenario
        return scenario

    @property
    def names(self) -> list[str]:
        return list(self._functions)

    def run(self) -> Report:
        """Returns the error of each scenario on this rank, as text; empty if it passed."""
        hvd.init()
        report = {}
        for name, scenario in self._functions.items():
            try:
                scenario()
                report[name] = ""
            except BaseException:
                report[name] = f"rank {hvd.rank()}:\n{traceback.format_exc()}"
            hvd.barrier()
        hvd.shutdown()
        return report


class AsHorovod(Scenarios):
    """Scenarios of ranks where hvdlite stands for Horovod; ``hvdlite.torch`` is ``horovod.torch`` there."""

    def run(self) -> Report:
        install_as_horovod()
        importlib.import_module("horovod.torch")
        return super().run()


def run(module: str) -> Report:
    """Runs the scenarios of ``module`` on this rank."""
    scenarios: Scenarios = importlib.import_module(module).scenario
    return scenarios.run()


def launch(ranks: int, module: str) -> Report:
    """Runs the scenarios of ``module`` on ``ranks`` ranks; what each of them raised on any rank.

    A job of one runs here, without a process to start.
    """
    if ranks == 1:
        return run(module)
    reports = [outcome.result() for outcome in process_ranks(ranks, run, module, server=TORCH)]
    return {name: "\n".join(report[name] for report in reports if report[name]) for name in reports[0]}


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float | None = None) -> None:
    """Same dtype and shape, and equal within ``tolerance``, by default a few roundings of the dtype.

    torch.testing.assert_close is the same and imports sympy, which takes every worker a second.
    """
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if tolerance is None:
        tolerance = 4 * torch.finfo(actual.dtype).eps if actual.dtype.is_floating_point else 0.0
    assert torch.allclose(actual, expected, rtol=tolerance, atol=tolerance), f"{actual} is not {expected}"
