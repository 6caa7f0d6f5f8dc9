"""Nothing waits with `select.select`, which refuses descriptors from 1,024 on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house.tree import ROOT, files

SOURCES = [path for path in files(".py") if path.parts[0] in ("hvdlite", "launcher")]


def selects(source: str) -> Iterator[int]:
    """The lines of a module that use `select.select` or the selector made of it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if name in ("select.select", "selectors.SelectSelector"):
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module in ("select", "selectors"):
            yield from [node.lineno for alias in node.names if alias.name in ("select", "SelectSelector")]


def test_no_module_uses_select() -> None:
    found = {path: list(selects(text)) for path in SOURCES if "select" in (text := (ROOT / path).read_text())}
    assert found, "no module waits for descriptors at all"
    lines = [f"{path}:{line}" for path, lines in found.items() for line in lines]
    assert not lines, "select.select fails from descriptor 1,024 on; use hvdlite.net.poll"


@pytest.mark.parametrize(
    "source",
    ["import select\nselect.select([f], [], [], 0)", "from select import select", "wait = selectors.SelectSelector()"],
)
def test_the_rule_sees_what_it_forbids(source: str) -> None:
    assert list(selects(source))
