"""Finds misspelt settings in the environment, which would be ignored silently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final

from hvdlite.settings import table

_PREFIX: Final = "HVDLITE_"
_NEARLY: Final = 0.85  # about one letter of seven is wrong


def misspelt(variables: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The ``variables`` whose names are close to a setting's, each with the setting."""
    known = {spec.name.upper() for spec in table()}
    for variable in variables:
        name = variable.removeprefix(_PREFIX)
        if name != variable and name not in known and (near := get_close_matches(name, known, 1, _NEARLY)):
            yield variable, _PREFIX + near[0]
