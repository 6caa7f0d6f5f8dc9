"""Files are named after one idea, and speak only of the project itself."""

from __future__ import annotations

import re

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
