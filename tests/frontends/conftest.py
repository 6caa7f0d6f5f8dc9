"""Fixtures of the front ends: a process with torch that ranks are forked from, and the run of scenarios."""

from __future__ import annotations

import pytest

from tests.frontends.scenarios import Report, launch


@pytest.fixture(autouse=True, scope="session")
def _torch_ranks(torch_fork_server: None) -> None:
    """Starts the server while the first test, which needs none, runs here."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that takes ``report`` and ``name`` for each number of ranks and scenario of its module."""
    if "report" in metafunc.fixturenames:
        scenarios = metafunc.module.scenario
        metafunc.parametrize("report", scenarios.ranks, ids="{0}-ranks".format, indirect=True, scope="module")
        metafunc.parametrize("name", scenarios.names)


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> Report:
    """The error of each scenario of the module, by its name."""
    return launch(request.param, request.module.__name__)
