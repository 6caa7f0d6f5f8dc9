"""Code that the documentation names as ``path.py::Class.method`` exists."""

from __future__ import annotations

import ast
import re

import pytest

from tests.house.tree import ROOT, files

_NAME = re.compile(r"`(?P<path>[\w/]+\.py)::(?P<name>[\w.]+)`")
NAMED = sorted(
    {(match["path"], match["name"]) for page in files(".md") for match in _NAME.finditer((ROOT / page).read_text())}
)


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_the_named_code_exists(path: str, name: str) -> None:
    body = ast.parse((ROOT / path).read_text()).body
    for part in name.split("."):
        found = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part]
        assert found, f"{path} has no {name}"
        body = found[0].body
