"""Many checks in one launch of worker processes, each reported as a test of its own.

The functions of a module that need several ranks run one after another in the same job. Every rank runs every scenario;
what one raises is recorded and the next goes on.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence

import pytest

import hvdlite as hvd
from tests.harness.forkserver import PLAIN, ForkServer
from tests.harness.processes import process_ranks

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

    def run(self, without: Collection[str] = ()) -> Report:
        """Returns the error of each scenario but some on this rank, as text; empty if it passed."""
        hvd.init()
        report = {}
        for name, scenario in self._functions.items():
            if name in without:
                continue
            try:
                scenario()
                report[name] = ""
            except BaseException:
                report[name] = f"rank {hvd.rank()}:\n{traceback.format_exc()}"
            hvd.barrier()
        hvd.shutdown()
        return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """For conftest.py: runs a test that takes ``report`` and ``name`` for each number of ranks and each scenario."""
    if "report" in metafunc.fixturenames:
        scenarios = metafunc.module.scenario
        metafunc.parametrize("report", scenarios.ranks, ids="{0}-ranks".format, indirect=True, scope="module")
        metafunc.parametrize("name", scenarios.names)


def run(module: str, without: Collection[str] = ()) -> Report:
    """Runs the scenarios of ``module``, but some, on this rank."""
    scenarios: Scenarios = importlib.import_module(module).scenario
    return scenarios.run(without)


def launch_ranks(
    ranks: int, module: str, environ: Mapping[str, str] | None = None, server: ForkServer = PLAIN
) -> Report:
    """Runs the scenarios of ``module`` on ``ranks`` processes; what each of them raised on any rank."""
    return joined([outcome.result() for outcome in process_ranks(ranks, run, module, environ=environ, server=server)])


def joined(reports: Sequence[Report]) -> Report:
    """One report of those of all ranks."""
    return {name: "\n".join(report[name] for report in reports if report[name]) for name in reports[0]}
