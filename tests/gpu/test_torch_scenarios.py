"""What the PyTorch front end does on CPUs it does on GPUs: its scenarios, with tensors on the GPUs of the fakes."""

from __future__ import annotations

import importlib
from typing import Any, Final

import pytest

from tests.gpu.test_ranks import SETTING
from tests.gpu.torch_fake.ranks import run_on_gpu
from tests.harness import process_ranks
from tests.harness.forkserver import ForkServer
from tests.harness.scenarios import Report, joined

_ONLY_FOR_CPUS: Final[dict[str, set[str]]] = {
    "gradients": set(),
    "autograd": set(),
    "broadcasting": {"objects_from_every_root"},
    "collectives": {"allreduce_of_every_dtype_op_and_shape", "in_place_forms_return_the_tensor_itself"},
    "join": set(),
    "sparse": set(),
    "sync_batch_norm": set(),
    "optimizer_options": set(),
    "misuse": {"workers_of_a_loader_know_the_rank_and_run_no_collective"},  # CUDA does not work in a fork
    "parameter_check": {
        "checksums_are_submitted_in_a_burst_with_gradients",
        "nothing_after_a_broadcast",
        "with_every_kind_of_reduction",
        "ranks_that_take_steps_with_adasum",
        # After the first step, parameters on GPUs are not compared.
        "ranks_that_drift_apart",
        "ranks_with_unequal_learning_rates",
        "ranks_whose_turns_differ_find_each_other",
    },
    "recipes": set(),
}
"""The modules of scenarios, and those of each that GPUs cannot have: Adasum, 16-bit integers, and unpickled tensors,
which PyTorch refuses where it was built without CUDA."""
MODULES: Final = tuple(_ONLY_FOR_CPUS)
PLANE: Final = "nccl"


def _module(name: str) -> str:
    return f"tests.frontends.test_torch_{name}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "report" in metafunc.fixturenames:
        for_each = [
            pytest.param(module, name, id=f"{module}-{name}")
            for module in metafunc.module.MODULES
            for name in importlib.import_module(_module(module)).scenario.names
            if name not in _ONLY_FOR_CPUS[module]
        ]
        metafunc.parametrize(("report", "name"), for_each, indirect=["report"], scope="module")


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest, torch_ranks: ForkServer) -> Report:
    """The error of each scenario of one module, by its name."""
    module: Any = request.param
    without = _ONLY_FOR_CPUS[module]
    environ = {SETTING: request.module.PLANE}
    outcomes = process_ranks(2, run_on_gpu, _module(module), without, environ=environ, server=torch_ranks)
    return joined([outcome.result() for outcome in outcomes])


def test_scenario(report: Report, name: str) -> None:
    assert report[name] == ""
