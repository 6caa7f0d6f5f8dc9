"""Skipped tests say what they need, so that the last line of a run says what to install."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.house.tree import ROOT, files

_NEED = re.compile(r"\bneeds?\b|\binstall")


def _reasons(tree: ast.Module) -> Iterator[ast.expr]:
    """Of calls of ``skip`` and ``importorskip``, of ``skipif`` marks, and what functions find ``missing``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield from [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
            if node.func.attr == "skip":
                yield from node.args
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("missing"):
            yield from [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]


def _texts(reason: ast.expr) -> list[str]:
    """The text of a literal; none of what stands for one, or of the empty one, by which nothing is missing."""
    parts = reason.values if isinstance(reason, ast.JoinedStr) else [reason]
    text = "".join(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return [text] if text else []


def _all() -> list[tuple[str, str]]:
    found = []
    for path in files(".py"):
        text = (ROOT / path).read_text() if path.parts[0] == "tests" else ""
        if any(word in text for word in ("skip", "reason", "def missing")):  # to parse all files takes a second
            tree = ast.parse(text)
            found += [(f"{path}:{reason.lineno}", text) for reason in _reasons(tree) for text in _texts(reason)]
    return found


FOUND = _all()


@pytest.mark.parametrize(("where", "text"), FOUND)
def test_the_reason_of_a_skip_says_what_is_needed(where: str, text: str) -> None:
    assert _NEED.search(text), where


def test_there_are_skips() -> None:
    assert len(FOUND) > 15
