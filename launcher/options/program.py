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
_NEARLY: Final = 0.8


def check_meaning(command: Sequence[str], path: str, hosts: str | None, others: Collection[str]) -> None:
    """Raises UsageError if the command begins with what belongs to the options.

    That is one more of the ``hosts`` of -H, or the name of one of the ``others``, hvdrun's commands beside a job; if
    ``path`` has a program of that name, the program is meant.
    """
    program = command[0]
    if shutil.which(program, path=path):
        return
    if hosts is not None and (hosts.endswith(",") or _SLOTS.fullmatch(program)):
        whole = f"{hosts.rstrip(',')},{program.lstrip(',')}"
        raise click.UsageError(f"the hosts of -H are one word, with commas and no spaces: -H {whole}.")
    for near in get_close_matches(program, others, 1, _NEARLY):
        meant = (
            f"write hvdrun's own command first: hvdrun {near}." if near == program else f"did you mean hvdrun {near}?"
        )
        raise click.UsageError(f"there is no program {program!r} to start; {meant}")


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
