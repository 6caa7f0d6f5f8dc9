"""The name ``horovod`` means hvdlite where that was asked for, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdlite.compat import FOLDER, python_path
from hvdlite.compat.names import MODULES
from tests.compat.asking import INSTALL, forked, python
from tests.harness.forkserver import TORCH

OF_OTHERS = ("horovod.tensorflow", "horovod.keras")  # which tests/tensorflow has
OURS = {name: lent for name, lent in MODULES.items() if not name.startswith(OF_OTHERS)}
_EVERY_MODULE = f"""
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


@pytest.mark.usefixtures("torch_fork_server")
@pytest.mark.parametrize(("first", "path"), [(INSTALL, ""), ("", FOLDER)], ids=["installed", "on the path"])
def test_every_module_is_found_and_is_the_one_of_the_table(first: str, path: str) -> None:
    forked(first + _EVERY_MODULE, path, server=TORCH)


def test_installing_twice_changes_nothing() -> None:
    program = "import sys; print(sys.meta_path, sys.path)\ninstall_as_horovod(); print(sys.meta_path, sys.path)"
    first, second = forked(INSTALL + program).splitlines()
    assert first == second


def test_importing_hvdlite_alone_changes_nothing(real: Path) -> None:
    program = (
        "import os, sys; before = {place}; import hvdlite; assert {place} == before; import horovod; print({seen})"
    )
    place, seen = "(sys.path[:], sys.meta_path[:], dict(os.environ))", "horovod.run"
    assert python("-c", program.format(place=place, seen=seen), PYTHONPATH=str(real)) == "the other one"


_PRINTS = "import horovod; print(horovod.__version__)"
_CHILDREN = f"""
import multiprocessing, os, shlex, subprocess, sys
if __name__ == "__main__":
    subprocess.run([sys.executable, "-c", {_PRINTS!r}], check=True)
    os.system(f'cd /; {{shlex.quote(sys.executable)}} -c "{_PRINTS}"')
    child = multiprocessing.get_context("spawn").Process(target=__import__, args=("horovod.common.basics",))
    child.start()
    child.join()
    print(child.exitcode)
"""


def test_children_inherit_it_however_they_are_started(real: Path) -> None:
    assert python("-c", INSTALL + _CHILDREN, PYTHONPATH=str(real)).split() == ["0.28.1", "0.28.1", "0"]


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
    assert "before the first import of horovod" in forked(program, str(real))


_MISSING = """
for statement in ("import horovod.mxnet", "from horovod import mxnet", "import horovod.torch.tensors"):
    try:
        exec(statement)
    except ModuleNotFoundError as error:
        print(error)
"""


@pytest.mark.usefixtures("torch_fork_server")
def test_what_is_not_there_says_what_is() -> None:
    imported, taken, below_torch = forked(INSTALL + _MISSING, server=TORCH).splitlines()
    assert imported == taken
    assert taken.startswith("no module 'horovod.mxnet'")
    assert taken.endswith("has common, keras, ray, runner, spark, tensorflow, torch in horovod")
    assert below_torch.startswith("no module 'horovod.torch.tensors'")
    assert below_torch.endswith(
        "has compression, elastic, functions, mpi_ops, optimizer, sync_batch_norm in horovod.torch"
    )


@pytest.mark.parametrize(
    ("present", "expected"),
    [(None, []), ("", []), ("a", ["a"]), (f"a:{FOLDER}:b", ["a", "b"]), (FOLDER, []), ("a::b", ["a", "", "b"])],
)
def test_the_users_path_stays_behind(present: str | None, expected: list[str]) -> None:
    assert python_path(present).split(":") == [FOLDER, *expected]
