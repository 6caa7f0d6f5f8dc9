"""Keras's own mode for several processes beside ours: hvdrun tells its ranks where they meet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.harness.patience import PATIENCE_S
from tests.house.tree import ROOT
from tests.keras.conftest import surroundings

_SCRIPT = """
import json, os
import jax, keras, numpy as np

assert "TF_CONFIG" not in os.environ
keras.distribution.initialize()
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", loss="mse")
own = np.full((16, 4), jax.process_index() + 1, "float32")
model.fit(own, own[:, :1], batch_size=8, verbose=0)
weights = [np.asarray(each).tolist() for each in model.get_weights()]
with open(f"{os.environ['FOLDER']}/{jax.process_index()}", "w") as file:
    json.dump([jax.process_count(), os.environ["RANK"], weights], file)
"""


def test_a_script_with_keras_distribution_starts_with_one_command(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_SCRIPT)
    hvdrun = [sys.executable, "-m", "hvdlite.launcher.cli", "-np", "2"]
    variables = {**os.environ, **surroundings("jax"), "FOLDER": str(tmp_path)}
    command = [*hvdrun, sys.executable, str(tmp_path / "script.py")]
    ended = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    first, second = (json.loads((tmp_path / str(number)).read_text()) for number in range(2))
    assert (first[:2], second[:2]) == ([2, "0"], [2, "1"])
    assert first[2] == second[2]
