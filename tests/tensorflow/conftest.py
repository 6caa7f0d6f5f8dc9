"""Fixtures of the TensorFlow front end: a process with TensorFlow that ranks are forked from, and scenarios."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.harness.forkserver import TENSORFLOW
from tests.harness.scenarios import Report, launch_ranks, run
from tests.harness.scenarios import pytest_generate_tests as pytest_generate_tests

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # errors only, here and on the ranks


@pytest.fixture(autouse=True, scope="session")
def _tensorflow_ranks() -> Iterator[None]:
    with TENSORFLOW:
        yield


@pytest.fixture(autouse=True, scope="session")
def _first_operation() -> None:
    """Before any test: TensorFlow 2.16 never closes /proc/self/cmdline, which it reads with its first operation."""
    import tensorflow as tf

    tf.zeros(())


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> Report:
    """The error of each scenario of the module, by its name. A job of one rank runs here."""
    ranks, module = request.param, request.module.__name__
    return run(module) if ranks == 1 else launch_ranks(ranks, module, server=TENSORFLOW)
