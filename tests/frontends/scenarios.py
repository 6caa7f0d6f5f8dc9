"""Many checks in one launch of worker processes, each reported as a test of its own.

Starting torch costs every worker seconds, so the functions of a module that need several ranks run one after another in
the same job. Every rank runs every scenario; what one raises is recorded and the next goes on.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

import torch

import hvdlite.torch as hvd
from tests.harness import process_ranks

Scenario = Callable[[], None]
Report = dict[str, str]


class Scenarios:
    """A decorator that collects scenarios, and their run on this rank."""

    def __init__(self) -> None:
        self._functions: dict[str, Scenario] = {}

    def __call__(self, scenario: Scenario) -> Scenario:
        self._functions[scenario.__name__] = scenario
        return scenario

    @property
    def names(self) -> list[str]:
        return list(self._functions)

    def run(self) -> Report:
        """What each scenario raised on this rank, as text; empty if it passed."""
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


def launch(ranks: int, run: Callable[[], Report]) -> Report:
    """Runs ``run``, a function at the top of a module, on ``ranks`` ranks; what each scenario raised on any of them.

    A job of one runs here, without a process to start.
    """
    if ranks == 1:
        return run()
    reports = [outcome.result() for outcome in process_ranks(ranks, run, deadline_s=90.0)]
    return {name: "\n".join(report[name] for report in reports if report[name]) for name in reports[0]}


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float | None = None) -> None:
    """Same dtype and shape, and equal within ``tolerance``, by default a few roundings of the dtype.

    torch.testing.assert_close is the same and imports sympy, which takes every worker a second.
    """
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if tolerance is None:
        tolerance = 4 * torch.finfo(actual.dtype).eps if actual.dtype.is_floating_point else 0.0
    assert torch.allclose(actual, expected, rtol=tolerance, atol=tolerance), f"{actual} is not {expected}"
