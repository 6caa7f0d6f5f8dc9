"""The run of scenarios in processes that import a framework of their own: nothing is imported before they start."""

from __future__ import annotations

import pytest

from tests.harness.scenarios import Report, launch_ranks


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that takes ``report`` and ``name`` for each job and scenario of its module."""
    if "report" in metafunc.fixturenames:
        backends = getattr(metafunc.module, "BACKENDS", ("",))
        scenarios = metafunc.module.scenario
        jobs = [(backend, ranks) for backend in backends for ranks in scenarios.ranks]
        ids = [f"{backend or 'jax'}-{ranks}-ranks" for backend, ranks in jobs]
        metafunc.parametrize("report", jobs, ids=ids, indirect=True, scope="module")
        metafunc.parametrize("name", scenarios.names)


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> Report:
    """The error of each scenario of the module, by its name."""
    backend, ranks = request.param
    return launch_ranks(ranks, request.module.__name__, surroundings(backend))


def surroundings(backend: str) -> dict[str, str]:
    """The environment of ranks that train with ``backend``, each on one thread and without its banners."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    return {**quiet, **({"KERAS_BACKEND": backend} if backend else {})}
