"""The name ``horovod`` where nobody asked for it: a program that only looks for Horovod behaves as if it had not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hvdlite.compat import FALLBACK
from tests.compat.asking import forked, python
from tests.compat.test_names import OURS
from tests.harness.forkserver import TORCH

_SHOW = "import horovod; print(getattr(horovod, '__version__', None), horovod.run)"
_ASK = """
try:
    import horovod
except ModuleNotFoundError as error:
    print(error, error.name, "horovod" in sys.modules, importlib.util.find_spec("horovod"))
"""


@pytest.mark.usefixtures("torch_fork_server")
def test_the_modules_are_those_of_hvdlite_but_for_what_begins_with_init() -> None:
    program = f"""
import importlib, os, sys
before = dict(os.environ), sys.path[:]
for name, lent in {OURS!r}.items():
    module = importlib.import_module(name)
    assert sys.modules[name] is module, name
    if not lent:
        continue
    own = importlib.import_module(lent)
    if not hasattr(own, "init"):
        assert hasattr(own, "HorovodBasics") or module is own, name
        continue
    assert module.init is not own.init, name
    assert module.allreduce is own.allreduce and dir(module) == dir(own) and module.__file__ == own.__file__, name
assert (dict(os.environ), sys.path) == before

import horovod, horovod.torch as hvd, hvdlite, torch
from horovod import torch as also, common
from horovod.torch import *
from horovod.torch.mpi_ops import is_homogeneous
assert hvd is also and init is hvd.init and horovod.__version__ == "0.28.1"
assert hvd.mpi_ops is sys.modules["horovod.torch.mpi_ops"] and hvd.mpi_ops.init is hvd.init
basics = [common.basics.HorovodBasics(), hvd.mpi_ops._basics]

def has_not_begun():
    for call in (hvd.rank, hvd.size, hvd.local_size, hvd.cross_rank, is_homogeneous, *(each.rank for each in basics)):
        try:
            call()
        except ValueError as error:
            assert str(error).startswith("Horovod has not been initialized"), error
        else:
            raise AssertionError(call)
    return not hvd.is_initialized()

def optimizer_of():
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return type(optimizer).__module__, weight.grad

assert has_not_begun()
hvdlite.init()  # of a program that prefers hvdlite, or in a library of its own
assert has_not_begun()
hvd.shutdown()
assert hvdlite.rank() == 0 and optimizer_of() == ("hvdlite.torch.optimizer", None)
assert hvdlite.session.current().options.stall_check_time_seconds == 10
hvdlite.shutdown()
hvd.init()
hvd.init()
assert hvd.is_initialized() and [each.size() for each in basics] == [1, 1]
assert optimizer_of() == ("horovod.torch.optimizer", torch.zeros(1))
assert hvdlite.session.current().options.stall_check_time_seconds == 60
hvd.shutdown()
print(hvdlite.is_initialized())
"""
    assert forked(program, FALLBACK, server=TORCH) == "False"


def test_another_horovod_comes_first_wherever_it_is(real: Path, tmp_path: Path) -> None:
    program = "import importlib.util as util, sys; before = util.find_spec('horovod'); import horovod; "
    program += "print(horovod.run, horovod is sys.modules['horovod'], util.find_spec('horovod.x'), "
    program += "any(name.startswith('hvdlite') for name in sys.modules))"
    assert python("-c", program, PYTHONPATH=f"{FALLBACK}:{real}") == "the other one True None False"
    script = tmp_path / "script.py"
    script.write_text("import horovod; print(horovod.run)")
    assert python(str(script), PYTHONPATH=FALLBACK) == "the other one"


def test_a_broken_horovod_stays_broken(real: Path) -> None:
    (real / "horovod/__init__.py").write_text("import nosuchmodule")
    program = "try:\n    import horovod\nexcept ImportError as error:\n    print(error.name)"
    assert forked(program, f"{FALLBACK}:{real}") == "nosuchmodule"


def test_a_folder_of_that_name_keeps_its_modules(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod/mine.py").touch()
    program = "import horovod.mine; " + _SHOW
    assert python("-c", program, PYTHONPATH=f"{FALLBACK}:{tmp_path}").startswith("0.28.1 <function run")
    without = "import horovod.mine; print(list(horovod.__path__))"
    assert python("-S", "-P", "-c", without, PYTHONPATH=f"{FALLBACK}:{tmp_path}") == f"['{tmp_path}/horovod']"


def test_where_hvdlite_is_missing_there_is_no_horovod() -> None:
    told = python("-S", "-P", "-c", f"import importlib.util, sys{_ASK}", PYTHONPATH=FALLBACK)
    assert told == "No module named 'horovod' horovod False None"


def test_the_package_has_a_syntax_that_old_pythons_read() -> None:
    source = (Path(FALLBACK) / "horovod/__init__.py").read_text()
    assert source.isascii()
    tree = ast.parse(source, feature_version=(3, 4))
    assert not [node for node in ast.walk(tree) if isinstance(node, (ast.JoinedStr, ast.FunctionDef, ast.AnnAssign))]


def test_a_package_that_would_choose_horovod_unasked_does_not_find_it(tmp_path: Path) -> None:
    """As PyTorch Lightning 1.9.5, which looks for it while it is imported."""
    (tmp_path / "pytorch_lightning/strategies").mkdir(parents=True)
    (tmp_path / "pytorch_lightning/__init__.py").write_text("from pytorch_lightning.strategies import horovod\n")
    (tmp_path / "pytorch_lightning/strategies/__init__.py").touch()
    (tmp_path / "pytorch_lightning/strategies/horovod.py").write_text(
        "import importlib.util\n"
        "try:\n"
        "    importlib.util.find_spec('horovod') and importlib.import_module('horovod.common')\n"
        "    is_available = True\n"
        "except ImportError:\n"
        "    is_available = False\n"
    )
    program = f"import pytorch_lightning; print(pytorch_lightning.strategies.horovod.is_available)\n{_SHOW}"
    told = forked(program, f"{FALLBACK}:{tmp_path}")
    assert told.startswith("False\n0.28.1 <function run")


def test_what_is_installed_stays_known() -> None:
    program = """
import horovod, importlib.metadata
try:
    importlib.metadata.version("horovod")
except importlib.metadata.PackageNotFoundError as error:
    print(error.name)
"""
    assert forked(program, FALLBACK) == "horovod"


def test_a_program_may_ask_for_the_name_after_it_was_found() -> None:
    program = """
import horovod.common.basics, hvdlite
hvdlite.install_as_horovod()
hvdlite.install_as_horovod()
try:
    hvdlite.rank()
except ValueError as error:
    print(error)
hvdlite.init()
print(horovod.common.basics.HorovodBasics().size())
"""
    told = forked(program, FALLBACK)
    assert told == "Horovod has not been initialized; call hvd.init() first\n1"


def test_children_inherit_it() -> None:
    program = """
import horovod.common, multiprocessing
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        child = multiprocessing.get_context(method).Process(target=__import__, args=("horovod.common.basics",))
        child.start()
        child.join()
        print(child.exitcode)
"""
    assert python("-c", program, PYTHONPATH=FALLBACK).split() == ["0", "0"]
