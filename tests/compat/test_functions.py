"""Functions, arguments, results and errors that travel between the caller of `hvdlite.run` and its workers."""

from __future__ import annotations

import functools
import operator
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hvdlite.running import functions
from tests.compat import calls
from tests.harness.patience import PATIENCE_S

_SCRIPT = """
import sys
from pathlib import Path
from hvdlite.running import run

class Thing:
    def __init__(self, number):
        self.number = number

def double(thing):
    return Thing(2 * thing.number)

if __name__ == "__main__":
    with Path(sys.argv[1]).open("a") as file:
        file.write("once,")
    print(*(thing.number for thing in run(double, (Thing(4),), np=2)))
"""


@pytest.fixture
def without_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)


def closure() -> Any:
    number = 3
    return lambda: number


@pytest.mark.parametrize("value", [calls.add_up, (operator.add, (1, 2), {"x": [1.5]}), functools.partial(max, 3)])
def test_what_has_a_name_needs_nothing_else(value: Any, without_cloudpickle: None) -> None:
    assert repr(functions.load(functions.dump(value))) == repr(value)


@pytest.mark.parametrize("value", [lambda: 3, closure()])
def test_what_has_no_name_travels_by_value(value: Any) -> None:
    pytest.importorskip("cloudpickle", reason="needs cloudpickle")
    assert functions.load(functions.dump(value))() == 3


@pytest.mark.parametrize("value", [lambda: 3, closure()])
def test_what_has_no_name_says_what_to_install(value: Any, without_cloudpickle: None) -> None:
    with pytest.raises(ValueError, match=r"cannot be sent .*(lambda|local object).* or install cloudpickle"):
        functions.dump(value)


def test_what_cannot_travel_at_all() -> None:
    pytest.importorskip("cloudpickle", reason="needs cloudpickle")
    with pytest.raises(ValueError, match="cannot be sent to another process: cannot pickle"):
        functions.dump(sys.stdout)


def test_the_limit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "MAX_BYTES", 100)
    with pytest.raises(ValueError, match="more than the limit of 100"):
        functions.dump(b"x" * 101)


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)


def _python_without_file(way: str, program: str) -> subprocess.CompletedProcess[str]:
    """``python -c PROGRAM``, or ``python - < PROGRAM``."""
    words = [sys.executable, way, *([program] if way == "-c" else [])]
    return subprocess.run(words, input=program, capture_output=True, text=True, timeout=PATIENCE_S)


def test_a_script_may_send_its_own_functions_and_classes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    ended = _python(str(script), str(tmp_path / "log"))
    assert ended.stdout == "8 8\n", ended.stderr
    assert (tmp_path / "log").read_text() == "once,"


@pytest.mark.parametrize("way", ["-c", "-"])
def test_a_program_without_a_file_needs_cloudpickle(way: str) -> None:
    pytest.importorskip("cloudpickle", reason="needs cloudpickle")
    program = "import sys\nfrom hvdlite.running import run\ndef three():\n    return 3\nprint(run(three))\n"
    ended = _python_without_file(way, f"{program}sys.modules['cloudpickle'] = None\nrun(three)\n")
    assert ended.stdout == "[3]\n", ended.stderr
    assert "it is defined in no file that a worker could import. Define it at the top" in ended.stderr
