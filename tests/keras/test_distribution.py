"""The modes of Keras and JAX for several processes: hvdrun tells its ranks where they meet and who they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.hosts import Network
from tests.harness.patience import PATIENCE_S
from tests.house.tree import ROOT
from tests.keras.conftest import surroundings
from tests.launcher.hvdrun import COMMAND

_WITH_KERAS = """
import sys
sys.modules["tensorflow"] = None  # Keras imports it on every back end, where it is installed
import jax, keras, numpy as np

keras.distribution.initialize()
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", loss="mse")
own = np.full((16, 4), jax.process_index() + 1, "float32")
model.fit(own, own[:, :1], batch_size=8, verbose=0)
result = [np.asarray(each).tolist() for each in model.get_weights()]
"""

_WITH_JAX = """
import os
import jax, numpy as np
import hvdlite.jax as hvd

os.environ["OMPI_MCA_orte_hnp_uri"] = "1.0;tcp://127.0.0.1:1"  # hvdrun may run inside of mpirun, which JAX knows
jax.distributed.initialize()
from jax.experimental import multihost_utils
result = multihost_utils.process_allgather(np.float32(jax.process_index() + 1)).tolist()
hvd.init()
assert hvd.allreduce(1.0, op=hvd.Sum) == hvd.size() == jax.process_count()
"""

_REPORT = """
import json, os

assert "TF_CONFIG" not in os.environ
told = [jax.process_index(), jax.process_count(), os.environ["RANK"], os.uname().nodename, result]
with open(f"{os.environ['FOLDER']}/{jax.process_index()}", "w") as file:
    json.dump(told, file)
"""


_PROGRAMS = {"keras.distribution": _WITH_KERAS, "jax.distributed": _WITH_JAX}
programs = pytest.mark.parametrize("program", _PROGRAMS.values(), ids=_PROGRAMS)
_HVDRUN = (*COMMAND, "-x", "FOLDER")


def _script(program: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command of a rank, and the variables of hvdrun."""
    (folder / "script.py").write_text(program + _REPORT)
    return [sys.executable, str(folder / "script.py")], {**os.environ, **surroundings("jax"), "FOLDER": str(folder)}


def _check(ended: subprocess.CompletedProcess[str], program: str, folder: Path, hosts: int) -> None:
    assert ended.returncode == 0, ended.stdout + ended.stderr
    first, second = (json.loads((folder / str(number)).read_text()) for number in range(2))
    assert [first[:3], second[:3]] == [[0, 2, "0"], [1, 2, "1"]]
    assert len({first[3], second[3]}) == hosts
    assert first[4] == second[4]
    if program is _WITH_JAX:
        assert first[4] == [1.0, 2.0]


@programs
def test_a_script_starts_with_one_command(program: str, tmp_path: Path) -> None:
    script, variables = _script(program, tmp_path)
    command = [*_HVDRUN, "-np", "2", *script]
    ended = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
    _check(ended, program, tmp_path, hosts=1)


@programs
def test_a_script_starts_with_one_command_on_two_hosts(program: str, tmp_path: Path, network: Network) -> None:
    script, variables = _script(program, tmp_path)
    ended = network["a"].run(*_HVDRUN, "-H", "a:1,b:1", *script, env=variables)
    _check(ended, program, tmp_path, hosts=2)
