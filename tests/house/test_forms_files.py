"""The files of forms are those that `make forms` writes, and the front ends have all forms of the table."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.house.forms_files import CLASS, NAMES, class_file, names_file

FILES = {CLASS: class_file, **{path: lambda path=path: names_file(path) for path in NAMES}}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_file_is_current(path: Path) -> None:
    written = ast.dump(ast.parse(FILES[path]()))
    assert ast.dump(ast.parse(path.read_text())) == written, f"{path} is not current; run make forms"
