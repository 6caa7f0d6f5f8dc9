"""Checks the program that the user wants to start, and suggests a correction if it does not exist.

Words that are not options begin the command. So a typo in the options, as in ``-H a:2 b:2 python train.py`` or
``hvdrun doktor``, looks like a program that does not exist.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import click

from ..decisions.of_python import check_target
from ..where.hosts import Host, is_local
from .hosts import HostOptions

_SLOTS: Final = re.compile(r"[^/\s]+:\d+(?:,.*)?")
_HOST: Final = re.compile(r"[A-Za-z0-9][\w.-]*,?")
_COUNT: Final = re.compile(r"(?:-np?|--num-proc)(?:=?(?P<count>\d+|auto))?")
_OF_SHELL: Final = re.compile(r"[|&;<>$`*()]|^\w+=")  # what only a shell understands
_NEARLY: Final = 0.75


def check_meaning(command: Sequence[str], path: str, hosts: str | None, others: Mapping[str, str]) -> None:
    """Raises UsageError if the command begins with words that belong to the options.

    Those are another of the ``hosts`` of -H, or a name in ``others``, which has a correction for hvdrun's own commands
    and for options that look like one; if ``path`` has a program of that name, the program is meant.
    """
    program = command[0]
    if shutil.which(program, path=path):
        return
    if hosts is not None and (more := _more_hosts(hosts, command, path)):
        whole = ",".join(word.strip(",") for word in (hosts, *more))
        raise click.UsageError(f"the hosts of -H are one word, with commas and no spaces: -H {whole}.")
    exchanged = [name for name in others if sorted(name) == sorted(program)]  # two letters of a short name
    for near in exchanged or get_close_matches(program, others, 1, _NEARLY):
        is_exact = near == program and not others[near].startswith("hvdrun -")
        meant = f"write hvdrun's own command first: {others[near]}." if is_exact else f"did you mean {others[near]}?"
        raise click.UsageError(f"there is no program {program!r} to start; {meant}")


def check_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    where: HostOptions,
    hosts: Sequence[Host],
    *,
    is_counted: bool,
) -> None:
    """Raises UsageError for a command that is a mistake, or that is not on this host if a rank is to run here."""
    path = environment.get("PATH", os.defpath)
    if where.hosts is not None and not is_counted and all(host.slots is None for host in hosts):
        _check_not_a_host(command, path, where.hosts)
    _check_folder()
    if not hosts or any(is_local(host.name) for host in hosts):
        _check_program(command, path)
        if not hosts and not is_counted:
            _check_order(command)
        check_target(command, environment)


def _check_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise click.UsageError("the working directory was removed; cd into one that exists.") from None


def _check_order(command: Sequence[str]) -> None:
    """Raises UsageError if the number of processes is given behind the program instead of before it."""
    for index, word in enumerate(command):
        if match := _COUNT.fullmatch(word):
            count = match["count"] or "".join(command[index + 1 : index + 2])
            if count.isdigit() or count == "auto":
                rest = [*command[:index], *command[index + (1 if match["count"] else 2) :]]
                raise click.UsageError(
                    f"hvdrun's options come before the program: hvdrun -np {count} {shlex.join(rest)}."
                )


def _check_not_a_host(command: Sequence[str], path: str, hosts: str) -> None:
    """Raises UsageError if ``command`` consists of words that look like hosts, and is no program of this host."""
    if all(_HOST.fullmatch(word) and not shutil.which(word, path=path) and not Path(word).exists() for word in command):
        whole = ",".join(word.strip(",") for word in (hosts, *command))
        raise click.UsageError(
            f"there is no program {command[0]!r} here. Hosts are one word, and the command follows: hvdrun -H {whole} "
            "python train.py. For a program that only the other hosts have, give its path."
        )


def _more_hosts(hosts: str, command: Sequence[str], path: str) -> list[str]:
    """The first words of ``command`` that are probably hosts: they have slots, or a program follows them."""
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


def _check_program(command: Sequence[str], path: str) -> None:
    """Raises UsageError with a suggestion if the program of this host cannot be executed."""
    program = command[0]
    if shutil.which(program, path=path):
        return
    if not Path(program).is_file():
        if words := _quoted_command(program, path):
            raise click.UsageError(f"{program!r} is one word, the name of no program; write {words}.")
        raise click.UsageError(f"the command {program!r} was not found; check its spelling, or PATH.")
    hint = f"write python {shlex.quote(program)}" if program.endswith(".py") else f"write ./{program} or a full path"
    if os.sep in program and not program.endswith(".py"):
        hint = f"make it executable with chmod +x {shlex.quote(program)}"
    raise click.UsageError(f"{program!r} is not executable; {hint}.")


def _quoted_command(word: str, path: str) -> str:
    """The command that ``word`` holds, as it should be written; empty if it is none."""
    try:
        words = shlex.split(word)
    except ValueError:
        return ""
    if len(words) < 2:
        return ""
    is_there = shutil.which(words[0], path=path) is not None
    if os.sep in words[0] and not is_there:  # a path with a space
        return ""
    if _OF_SHELL.search(word):
        return f"sh -c {shlex.quote(word)}"
    return f"it without quotes: {word}" if is_there else ""
