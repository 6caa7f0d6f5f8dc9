"""The environment that the user wants for the workers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Final

import click

from hvdlite.compat import is_lent, lend
from hvdlite.launched_by.inherited import without_job
from hvdlite.launched_by.slurm import without_step

from .flags import SETTINGS
from .horovodrun import search_path
from .job import JobOptions

_VARIABLE: Final = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<assigns>=)?(?P<value>.*)", re.DOTALL)
_PREFIX: Final = "HVDLITE_"
_NEARLY: Final = 0.85  # about one letter of seven is wrong


def environment_of(job: JobOptions, settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with variables of -x, which win over ``settings`` of flags.

    Raises UsageError for a variable that is none.
    """
    environment = without_job(without_step(os.environ))
    for name, value in settings.items():
        if job.named.isdisjoint(SETTINGS[name].variables):
            environment |= dict.fromkeys(SETTINGS[name].variables, value)
    for text in job.variables:
        match = _VARIABLE.fullmatch(text)
        if match is None or (match["value"] and not match["assigns"]):
            raise click.UsageError(f"-x {text!r} is not NAME or NAME=VALUE.")
        if match["assigns"]:
            environment[match["name"]] = match["value"]
        elif match["name"] in os.environ:
            environment[match["name"]] = os.environ[match["name"]]
        elif match["name"] not in environment:
            raise click.UsageError(f"-x {text}: there is no such variable here; give it a value with -x {text}=VALUE.")
    _lend_horovod(environment, job)
    return environment


def _lend_horovod(environment: dict[str, str], job: JobOptions) -> None:
    """Lends the name ``horovod`` in ``environment`` as the option or the setting says, and passes the option on.

    Where it is lent, the command ``horovodrun`` is on PATH.
    """
    spec = SETTINGS["horovod_compat"]
    (name,) = spec.variables
    if job.lends_horovod is not None and name not in job.named:
        environment[name] = str(int(job.lends_horovod))
    choice = spec.parse(name, environment.get(name, spec.default))
    lend(environment, choice)
    present = environment.get("PATH", os.defpath)
    path = search_path(present, is_lent=is_lent(environment), comes_first=choice == "1")
    if path != present:
        environment["PATH"] = path


def misspelt(variables: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The ``variables`` whose names are close to a setting's, each with the setting: they would be ignored silently."""
    known = {name.upper() for name in SETTINGS}
    for variable in variables:
        name = variable.removeprefix(_PREFIX)
        if name != variable and name not in known and (near := get_close_matches(name, known, 1, _NEARLY)):
            yield variable, _PREFIX + near[0]
