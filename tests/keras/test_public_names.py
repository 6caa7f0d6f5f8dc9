"""The public names of the front ends that need packages of their own; see tests/house/test_public_api.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.harness.patience import PATIENCE_S
from tests.house.test_public_api import COMMON
from tests.house.tree import ROOT
from tests.keras.conftest import surroundings

IN_PLACE = {name for name in COMMON if name.endswith(("_", "_async_")) and not name.startswith("_")}
COLLECTIVES = set(COMMON[COMMON.index("allreduce") : COMMON.index("join")])
NAMES = {
    "hvdlite.jax": (set(COMMON) - IN_PLACE - {"shared_empty"})
    | {"Compression", "Compressor", "broadcast_parameters", "last_error"},
    "hvdlite.keras": set(
        """DistributedOptimizer PartialDistributedOptimizer Compression Compressor last_error load_model
        allreduce allgather broadcast reducescatter broadcast_variables broadcast_global_variables""".split()
    )
    | (set(COMMON) - COLLECTIVES - {"shared_empty"}),
    "hvdlite.keras.callbacks": set(
        """BestModelCheckpoint BroadcastGlobalVariablesCallback LearningRateScheduleCallback
        LearningRateWarmupCallback MetricAverageCallback""".split()
    ),
}


_PROGRAM = """
import importlib, json, sys
loaded = importlib.import_module(sys.argv[1])
bare = [name for name in loaded.__all__ if callable(getattr(loaded, name)) and not getattr(loaded, name).__doc__]
print(json.dumps([loaded.__all__, bare, dir(loaded)]))
"""


def test_tensorflow_has_it_as_its_own() -> None:
    program = """
import hvdlite.tensorflow.keras as hvd, hvdlite.keras
from hvdlite.tensorflow.keras.callbacks import MetricAverageCallback
assert hvd is hvdlite.keras
assert MetricAverageCallback is hvdlite.keras.callbacks.MetricAverageCallback
"""
    environ = {**os.environ, **surroundings("tensorflow")}
    subprocess.run([sys.executable, "-c", program], env=environ, cwd=ROOT, timeout=PATIENCE_S, check=True)


@pytest.mark.parametrize("module", NAMES)
def test_the_public_list_is_what_was_promised(module: str) -> None:
    command = [sys.executable, "-c", _PROGRAM, module]
    environ = {**os.environ, **surroundings("jax")}
    told = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert told.returncode == 0, told.stderr
    public, bare, shown = json.loads(told.stdout)
    version = {"__version__"} if module.count(".") == 1 else set()
    assert sorted(public) == sorted(shown) == sorted(NAMES[module] | version)
    assert bare == []
