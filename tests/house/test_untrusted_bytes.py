"""Functions that can run code from bytes are used in few places, on bytes that ranks of one job send each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.tree import ROOT, files, module_name

DANGEROUS = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "_pickle"}
CALLS = {"eval", "exec", "compile", "__import__"}
MAY_UNPICKLE = {
    "hvdlite.launcher.blackbox.flight_recorder",  # it only dumps
    "hvdlite.ops.by_value",  # it only dumps
    "hvdlite.ops.objects",  # objects that the user's program gives to broadcast_object
    "hvdlite.training.broadcasting",  # the same for objects with tensors in them
    "hvdlite.running.functions",  # the function that the user's program gives to run()
}
SOURCES = [path for path in files(".py") if path.parts[0] in ("hvdlite", "launcher")]


def dangers(source: str) -> Iterator[str]:
    """Lists the dangerous functions that a module imports or calls."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in DANGEROUS)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in DANGEROUS:
            yield node.module or ""
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield f"{node.func.id}()"


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_only_these_modules_unpickle(path: Path) -> None:
    found = set(dangers((ROOT / path).read_text()))
    assert not found or (module_name(path) in MAY_UNPICKLE and found <= {"pickle", "cloudpickle"})


@pytest.mark.parametrize("source", ["import pickle", "from marshal import loads", "def f(x):\n    return eval(x)"])
def test_the_rule_sees_what_it_forbids(source: str) -> None:
    assert list(dangers(source))
