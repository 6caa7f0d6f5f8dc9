"""docs/horovod.md is true: what it says to be the same or to differ is there, and what it says not to be is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import hvdlite.torch
from hvdlite.compat import FOLDER
from hvdlite.launcher.cli import hvdrun
from hvdlite.settings import table
from tests.harness.patience import PATIENCE_S
from tests.house.tree import ROOT

PAGE = ROOT / "docs/horovod.md"
NAMES = ROOT / "tests/house/horovod_names.txt"
_NAME = r"(?P<name>[^`(]+)(?P<call>\((?P<parameters>[^`)]*)\))?"
_ROW = re.compile(r"\| (?P<names>`[^`]+`(?:, `[^`]+`)*) \| [^|]+ \|")
_LISTS = {"The same": "same", "Not there": "not there", "Refused, with an explanation": "differs"}

# Prints, for each name, None if it does not exist, else the names of its parameters, [] where it has no signature.
_RESOLVE = """
import importlib, inspect, json, sys
import torch, horovod, horovod.torch as hvd

def find(name):
    section, *parts = name.split(" ")
    found = optimizer if section == "optimizer" else importlib.import_module(section)
    path = section
    for part in parts[0].split("."):
        path += "." + part
        if not hasattr(found, part):
            importlib.import_module(path)
        found = getattr(found, part)
    return found

def describe(name):
    try:
        found = find(name)
    except (ImportError, AttributeError):
        return None
    try:
        return list(inspect.signature(found).parameters) if callable(found) else []
    except ValueError:
        return []

hvd.init()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1))
print(json.dumps({name: describe(name) for name in json.load(sys.stdin)}))
"""


class Row(NamedTuple):
    """What the page says about a name: the heading that the name is under, and whether hvdlite has the name."""

    section: str
    name: str
    parameters: list[str] | None
    verdict: str

    def __str__(self) -> str:
        return f"{self.section} {self.name}"


def _rows() -> Iterator[Row]:
    """What the page says about each name, with the parameters that the name has in Horovod."""
    parameters = {(section, match["name"]): _parameters(match) for section, match in _names()}
    for row in _rows_of_the_page():
        yield row._replace(parameters=parameters.pop((row.section, row.name), None))
    assert not parameters, f"not on the page: {parameters}"


def _rows_of_the_page() -> Iterator[Row]:
    """Lists name their verdict, and rows of tables differ. Remarks in parentheses are no names."""
    section = ""
    for paragraph in PAGE.read_text().split("\n\n"):
        opening, _, names = paragraph.partition(": ")
        if heading := re.fullmatch(r"## `(.+)`", paragraph):
            section = heading[1]
        elif opening in _LISTS:
            for name in re.findall(r"`([^`]+)`", re.sub(r"\([^)]*\)", "", names)):
                yield Row(section, name, None, _LISTS[opening])
        elif paragraph.startswith("| name |"):
            for line in paragraph.splitlines()[2:]:
                match = _ROW.fullmatch(line)
                assert match, line
                for name in re.findall(r"`([^`]+)`", match["names"]):
                    yield Row(section, name, None, "differs")


def _names() -> Iterator[tuple[str, re.Match[str]]]:
    section = ""
    for line in NAMES.read_text().splitlines():
        if heading := re.fullmatch(r"\[(.+)\]", line):
            section = heading[1]
        elif line and not line.startswith("#"):
            match = re.fullmatch(_NAME, line)
            assert match, line
            yield section, match


def _parameters(match: re.Match[str]) -> list[str] | None:
    return [name for name in re.split(r",\s*", match["parameters"] or "") if name] if match["call"] else None


ROWS = list(_rows())
IN_PYTHON = [row for row in ROWS if row.section in ("horovod.torch", "optimizer", "horovod")]


@pytest.fixture(scope="module")
def resolved() -> dict[str, list[str] | None]:
    ended = subprocess.run(
        [sys.executable, "-c", _RESOLVE],
        input=json.dumps([str(row) for row in IN_PYTHON]),
        env={**os.environ, "PYTHONPATH": FOLDER},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, list[str] | None] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("row", IN_PYTHON, ids=str)
def test_the_row_is_true(row: Row, resolved: dict[str, list[str] | None]) -> None:
    parameters = resolved[str(row)]
    if row.verdict == "not there":
        assert parameters is None
        return
    assert parameters is not None, "it is not there"
    told = row.parameters or []
    ours = [name for name in parameters if name != "self"]
    assert ours[: len(told)] == told if row.verdict == "same" else set(told) <= set(ours)


@pytest.mark.parametrize("row", [row for row in ROWS if row.section == "horovodrun"], ids=str)
def test_the_option_is_there_or_not(row: Row) -> None:
    options = {name for option in hvdrun.params for name in (*option.opts, *option.secondary_opts)}
    assert (row.name in options) == (row.verdict != "not there")


@pytest.mark.parametrize("row", [row for row in ROWS if row.section == "HOROVOD_*"], ids=str)
def test_the_variable_is_read_or_not(row: Row) -> None:
    variables = {name for spec in table() for name in spec.variables}
    assert (row.name in variables) == (row.verdict != "not there")


def test_the_page_is_complete() -> None:
    assert len(ROWS) > 150
    assert {row.verdict for row in ROWS} == set(_LISTS.values())
    assert len({str(row) for row in ROWS}) == len(ROWS)
    page = set(re.findall(r"\w+", PAGE.read_text()))
    assert {name for name in hvdlite.torch.__all__ if not name.startswith("__")} - page - _OWN == set()
    assert {name for spec in table() for name in spec.variables if name.startswith("HOROVOD_")} <= page


# What only hvdlite has; docs/api.md names it.
_OWN = {
    "DuplicateName",
    "HvdError",
    "Mismatch",
    "NativeUnavailable",
    "PeerLost",
    "ShutDown",
    "Stalled",
    "shared_empty",
} | {f"{name}{form}" for name in ("gather", "recv", "reduce", "scatter", "send") for form in ("_", "_async", "_async_")}
