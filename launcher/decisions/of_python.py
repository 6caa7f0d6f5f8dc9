"""Finds the script or module that a command has Python run, to check before the start that it exists."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final, NamedTuple

import click

_PYTHON: Final = re.compile(r"python(\d(\.\d+)?)?")
_TAKE_A_WORD: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_ELSEWHERE: Final = frozenset("EIPsS")  # options with which Python looks for modules in other places
_NEARLY: Final = 0.8


class Target(NamedTuple):
    """The script or the module that Python will run; neither if it runs something else."""

    script: str = ""
    module: str = ""


def target_of(command: Sequence[str]) -> Target:
    """The target of ``command``. A module counts only if Python looks for it in the default places."""
    if not _PYTHON.fullmatch(Path(command[0]).name):
        return Target()
    words = iter(command[1:])
    looks_elsewhere = False
    for word in words:
        if not word.startswith("-"):
            return Target(script=word)
        if word in _TAKE_A_WORD:
            next(words, None)
        elif not word.startswith("--"):
            letters = re.split("[cm]", word[1:], maxsplit=1)
            looks_elsewhere |= bool(_ELSEWHERE & set(letters[0]))
            if len(letters) == 2:
                is_module = word[1 + len(letters[0])] == "m" and not looks_elsewhere
                return Target(module=(letters[1] or next(words, "")) if is_module else "")
            if word == "-":
                return Target()
    return Target()


def check_target(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raises UsageError with a suggestion if the script or module does not exist."""
    script, module = target_of(command)
    if script and not Path(script).exists():
        folder = Path(script).parent
        near = get_close_matches(Path(script).name, _names_in(folder), 1, _NEARLY)
        hint = f"did you mean {shlex.quote(str(folder / near[0]))}?" if near else "check its spelling."
        where = "" if os.path.isabs(script) else f" in {os.getcwd()}"
        raise click.UsageError(f"there is no file {script!r}{where}; {hint}")
    if module and _is_own_python(command[0], environment) and not _is_importable(module, environment):
        name = module.partition(".")[0]
        raise click.UsageError(
            f"{command[0]} has no module {name!r}; check its spelling, or install what it is part of."
        )


def python_of(command: Sequence[str], path: str) -> str:
    """The interpreter that ``command`` runs, with its path if it is on ``path``; empty for another program."""
    program = command[0]
    return (shutil.which(program, path=path) or program) if _PYTHON.fullmatch(Path(program).name) else ""


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _is_own_python(program: str, environment: Mapping[str, str]) -> bool:
    """True if ``program`` is the Python that runs hvdrun; nothing is known about any other."""
    found = shutil.which(program, path=environment.get("PATH", os.defpath))
    if found is None:
        return False
    is_here = os.path.realpath(os.path.dirname(found)) == os.path.realpath(os.path.dirname(sys.executable))
    return is_here and os.path.realpath(found) == os.path.realpath(sys.executable)


def _is_importable(module: str, environment: Mapping[str, str]) -> bool:
    """True if the module or package exists, or the package around it, which is not imported to find out."""
    name = module.partition(".")[0]
    folders = [os.getcwd(), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        return bool(PathFinder.find_spec(name, folders) or importlib.util.find_spec(name))
    except (ImportError, ValueError):  # it is here, and is odd
        return True
