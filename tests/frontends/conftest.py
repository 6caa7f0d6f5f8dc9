"""Fixtures of the front ends: a process with torch that ranks are forked from, and the run of scenarios."""

from __future__ import annotations

import pytest
import torch

from tests.frontends.scenarios import Report, launch
from tests.harness.scenarios import pytest_generate_tests as pytest_generate_tests

torch.set_num_threads(1)  # jobs of one run here, beside other tests


@pytest.fixture(autouse=True, scope="session")
def _torch_ranks(torch_fork_server: None) -> None:
    """Starts the server while the first test, which needs none, runs here."""


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> Report:
    """The error of each scenario of the module, by its name."""
    return launch(request.param, request.module.__name__)
