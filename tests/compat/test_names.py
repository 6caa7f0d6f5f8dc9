"""The name ``horovod`` means hvdlite where that was asked for, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlite.compat import FOLDER, python_path
from hvdlite.compat.names import MODULES
from tests.harness.patience import PATIENCE_S

INSTALL = "from hvdlite.compat import install_as_horovod; install_as_horovod()\n"
OF_OTHERS = ("horovod.tensorflow", "horovod.keras")  # which tests/tensorflow has
OURS = {name: lent for name, lent in MODULES.items() if not name.startswith(OF_OTHERS)}


def python(*arguments: str, **environ: str) -> str:
    """Returns the output of a fresh interpreter. Fails with its errors if it fails."""
    ended = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environ}, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A folder with something else that is called horovod."""
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod/__init__.py").write_text("run = 'the other one'\n")
    return tmp_path


def test_every_module_is_found_and_is_the_one_of_the_table() -> None:
    program = f"""
import importlib, sys
for name, lent in {OURS!r}.items():
    module = importlib.import_module(name)
    assert not lent or module is importlib.import_module(lent), name
    assert sys.modules[name] is module, name
import horovod, horovod.torch as hvd
from horovod.torch.mpi_ops import is_homogeneous, allreduce
from horovod import torch as also, common
from horovod.common import exceptions
from horovod.runner import launch
from horovod.torch import mpi_ops, functions, sync_batch_norm
from horovod.common.util import split_list
from horovod import run
from horovod.runner import run as same
assert hvd is also and hvd is horovod.torch and run is same and horovod.__version__ == "0.28.1"
"""
    python("-c", INSTALL + program)
    python("-c", program, PYTHONPATH=FOLDER)


def test_installing_twice_changes_nothing() -> None:
    program = "import sys; print(sys.meta_path, sys.path)\ninstall_as_horovod(); print(sys.meta_path, sys.path)"
    first, second = python("-c", INSTALL + program).splitlines()
    assert first == second


def test_importing_hvdlite_alone_changes_nothing(real: Path) -> None:
    program = (
        "import os, sys; before = {place}; import hvdlite; assert {place} == before; import horovod; print({seen})"
    )
    place, seen = "(sys.path[:], sys.meta_path[:], dict(os.environ))", "horovod.run"
    assert python("-c", program.format(place=place, seen=seen), PYTHONPATH=str(real)) == "the other one"


_PRINTS = "import horovod; print(horovod.__version__)"
_WAYS = {
    "subprocess": f"subprocess.run([sys.executable, '-c', {_PRINTS!r}], check=True)",
    "shell": f"os.system(f'cd /; {{shlex.quote(sys.executable)}} -c \"{_PRINTS}\"')",
    "spawn": "child = multiprocessing.get_context('spawn').Process(target=__import__, args=('horovod.torch',)); "
    "child.start(); child.join(); print('0.28.1' if child.exitcode == 0 else 'failed')",
}


@pytest.mark.parametrize("way", _WAYS)
def test_children_inherit_it_however_they_are_started(way: str, real: Path) -> None:
    program = f"{INSTALL}import multiprocessing, os, shlex, subprocess, sys\nif __name__ == '__main__': {_WAYS[way]}\n"
    assert python("-c", program, PYTHONPATH=str(real)) == "0.28.1"


def test_an_installed_horovod_comes_second_and_stays_for_others(real: Path) -> None:
    program = "import horovod; print(horovod.run)"
    assert python("-c", program, PYTHONPATH=str(real)) == "the other one"
    assert python("-c", program, PYTHONPATH=python_path(str(real))).startswith("<function run")


def test_a_horovod_that_is_imported_already_is_an_error(real: Path) -> None:
    program = f"""
import horovod, os
before = dict(os.environ)
try:
    {INSTALL.strip()}
except ImportError as error:
    assert dict(os.environ) == before
    print(error)
"""
    assert "before the first import of horovod" in python("-c", program, PYTHONPATH=str(real))


@pytest.mark.parametrize(
    "statement", ["import horovod.mxnet", "from horovod import mxnet", "import horovod.torch.tensors"]
)
def test_what_is_not_there_says_what_is(statement: str) -> None:
    program = f"{INSTALL}try:\n    {statement}\nexcept ModuleNotFoundError as error:\n    print(error)"
    told = python("-c", program)
    assert told.startswith(f"no module 'horovod.{'torch.tensors' if 'tensors' in statement else 'mxnet'}'")
    if "tensors" in statement:
        assert told.endswith(
            "has compression, elastic, functions, mpi_ops, optimizer, sync_batch_norm in horovod.torch"
        )
    else:
        assert told.endswith("has common, keras, ray, runner, spark, tensorflow, torch in horovod")


@pytest.mark.parametrize(
    ("present", "expected"),
    [(None, []), ("", []), ("a", ["a"]), (f"a:{FOLDER}:b", ["a", "b"]), (FOLDER, []), ("a::b", ["a", "", "b"])],
)
def test_the_users_path_stays_behind(present: str | None, expected: list[str]) -> None:
    assert python_path(present).split(":") == [FOLDER, *expected]
