"""Checks the program that the user wants to start, and says what was probably meant if it is none.

Words that are not options begin the command. So a slip among the options, as in ``-H a:2 b:2 python train.py`` or
``hvdrun doktor``, shows as a program that there is not.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import click

_SLOTS: Final = re.compile(r"[^/\s]+:\d+(?:,.*)?")
_HOST: Final = re.compile(r"[A-Za-z0-9][\w.-]*,?")
_PYTHON: Final = re.compile(r"python(\d(\.\d+)?)?")
_TAKE_A_WORD: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})  # of Python's options
_NEARLY: Final = 0.8


def check_meaning(command: Sequence[str], path: str, hosts: str | None, others: Collection[str]) -> None:
    """Raises UsageError if the command begins with what belongs to the options.

    That is one more of the ``hosts`` of -H, or the name of one of the ``others``, hvdrun's commands beside a job; if
    ``path`` has a program of that name, the program is meant.
    """
    program = command[0]
    if shutil.which(program, path=path):
        return
    if hosts is not None and (more := _more_hosts(hosts, command, path)):
        whole = ",".join(word.strip(",") for word in (hosts, *more))
        raise click.UsageError(f"the hosts of -H are one word, with commas and no spaces: -H {whole}.")
    for near in get_close_matches(program, others, 1, _NEARLY):
        meant = (
            f"write hvdrun's own command first: hvdrun {near}." if near == program else f"did you mean hvdrun {near}?"
        )
        raise click.UsageError(f"there is no program {program!r} to start; {meant}")


def _more_hosts(hosts: str, command: Sequence[str], path: str) -> list[str]:
    """The words at the beginning of ``command`` that are rather hosts: they have slots, or a program follows them."""
    names: list[str] = []
    for word in command:
        if _SLOTS.fullmatch(word) or (hosts.endswith(",") and not names):
            names.append(word)
        elif names and shutil.which(word, path=path):
            return names
        elif _HOST.fullmatch(word):
            names.append(word)
        else:
            break
    is_sure = hosts.endswith(",") or any(_SLOTS.fullmatch(name) for name in names[:1])
    return names[:1] if is_sure else []


def script_of(command: Sequence[str]) -> str | None:
    """The file that ``command`` has Python run; None if it runs none, or is no Python."""
    if not _PYTHON.fullmatch(Path(command[0]).name):
        return None
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-"):
            return word
        if word in _TAKE_A_WORD:
            next(words, None)
        elif not word.startswith("--") and (word == "-" or set(word[1:]) & set("cm")):
            return None
    return None


def check_script(command: Sequence[str]) -> None:
    """Raises UsageError if the script that Python is to run is not there, with the one that was probably meant."""
    script = script_of(command)
    if script is None or Path(script).exists():
        return
    folder = Path(script).parent
    near = get_close_matches(Path(script).name, _names_in(folder), 1, _NEARLY)
    hint = f"did you mean {shlex.quote(str(folder / near[0]))}?" if near else "check its spelling."
    where = "" if os.path.isabs(script) else f" in {os.getcwd()}"
    raise click.UsageError(f"there is no file {script!r}{where}; {hint}")


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def check_program(command: Sequence[str], path: str) -> None:
    """Raises UsageError if what is to be started on this host cannot be executed, with what to write instead."""
    program = command[0]
    if shutil.which(program, path=path):
        return
    if not Path(program).is_file():
        raise click.UsageError(f"the command {program!r} was not found; check its spelling, or PATH.")
    hint = f"write python {shlex.quote(program)}" if program.endswith(".py") else f"write ./{program} or a full path"
    if os.sep in program and not program.endswith(".py"):
        hint = f"make it so with chmod +x {shlex.quote(program)}"
    raise click.UsageError(f"{program!r} is not a command that can be executed; {hint}.")
