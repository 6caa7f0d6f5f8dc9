"""Scenarios of the PyTorch front end with tensors on GPUs that go through the memory of the host."""

from __future__ import annotations

from typing import Final

from tests.gpu.test_torch_scenarios import pytest_generate_tests as pytest_generate_tests
from tests.gpu.test_torch_scenarios import report as report
from tests.gpu.test_torch_scenarios import test_scenario as test_scenario

MODULES: Final = ("optimizer_options", "gradients", "collectives", "join")
PLANE: Final = "staged"
