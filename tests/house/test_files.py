"""Files are named after one idea, and speak only of the project itself."""

from __future__ import annotations

import re
import subprocess
import tomllib

from tests.house.tree import ROOT, files

VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
PATH_OF_ONE_MACHINE = re.compile(r"(?<![\w.])/(?:home|root|work|Users)/\w")


def test_no_file_has_a_vague_name() -> None:
    assert [str(path) for path in files() if VAGUE_NAMES & {part.split(".")[0] for part in path.parts}] == []


def test_nothing_is_left_unfinished_or_bound_to_one_machine() -> None:
    found = []
    for path in files(".py", ".cc", ".h", ".md", ".cfg", ".toml", ".txt"):
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            if UNFINISHED.search(line) or PATH_OF_ONE_MACHINE.search(line):
                found.append(f"{path}:{number}: {line.strip()}")
    assert found == []


def test_the_package_is_built_from_setup_cfg_alone() -> None:
    """A [tool.setuptools] table would take the metadata out of setup.cfg's hands."""
    assert "[tool.setuptools" not in (ROOT / "pyproject.toml").read_text()


def test_types_are_checked_across_the_whole_package() -> None:
    """A part whose imports may be missing is not checked, and neither is its use."""
    mypy = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert mypy["strict"]
    unchecked = [module for override in mypy["overrides"] for module in override["module"]]
    assert [module for module in unchecked if module.startswith(("hvdlite", "launcher", "*"))] == []


def test_what_runs_with_pytorch_leaves_out_the_tests_that_have_another_environment() -> None:
    for target in ("test", "test-busy"):
        command = ["make", "--dry-run", target]
        planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        (line,) = (line for line in planned.splitlines() if "--numprocesses" in line)
        assert {f"--ignore=tests/{each}" for each in ("keras", "programs", "tensorflow")} <= set(line.split()), target
