"""The example on real images with each back end and several numbers of ranks, in ranks that are forked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from unittest import mock

import pytest

from tests.harness.forkserver import ForkServer
from tests.harness.programs import output_of
from tests.house.tree import ROOT
from tests.keras.conftest import surroundings


@pytest.fixture(scope="module", params=["jax", "tensorflow", "torch"])
def backend(request: pytest.FixtureRequest) -> Iterator[tuple[str, ForkServer]]:
    """A back end of Keras, and a process with it that ranks are forked from."""
    with (
        mock.patch.dict(os.environ, surroundings(request.param)),
        ForkServer("hvdlite.keras", "pytest", "sklearn.datasets") as server,
    ):
        yield request.param, server


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_digits_example_reads_97_percent(backend: tuple[str, ForkServer], ranks: int) -> None:
    name, server = backend
    output = output_of(ranks, ROOT / "examples/keras_digits.py", "--target", "0.97", cwd=ROOT, server=server)
    pattern = rf"final test accuracy (\d+\.\d+)% with {ranks} rank\(s\) on {name}$"
    (accuracy,) = re.findall(pattern, output, flags=re.MULTILINE)
    assert float(accuracy) >= 97.0
