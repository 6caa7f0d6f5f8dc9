"""The effect of one of Horovod's flags: it sets a setting, is always on, has no effect, or is refused.

A value is text, whether it was typed or read from a configuration file, and is checked by the row of the setting that
it goes to. ``label`` is the name of the user's input in messages: ``--cycle-time-ms``, or the line of a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from hvdlite.settings import Spec, parse_switch, table

SETTINGS: Final[Mapping[str, Spec]] = {spec.name: spec for spec in table()}


@dataclass(frozen=True, slots=True)
class Flag:
    """One row: ``spelling`` as in ``--a --also-a`` or ``--a/--no-a``, the name of its value, its key in a file.

    A flag without ``metavar`` is a switch. ``note`` says what it does, or why it does nothing.
    """

    spelling: str
    metavar: str = ""
    key: str = ""
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The spellings that switch the flag on."""
        return tuple(self.spelling.partition("/")[0].split())

    @property
    def opposite(self) -> str:
        """The spelling that switches the flag off; empty if there is none."""
        return self.spelling.partition("/")[2]

    @property
    def is_switch(self) -> bool:
        return not self.metavar


@dataclass(frozen=True, slots=True)
class Sets(Flag):
    """Gives ``setting`` a value. ``scale`` of its units are one of the flag's; if ``is_negated``, on means its 0."""

    setting: str = ""
    scale: int = 1
    is_negated: bool = False

    def value(self, label: str, text: str) -> str:
        """The text of the setting. Raises ValueError that names ``label`` and the legal values."""
        value = SETTINGS[self.setting].parse(label, text)
        if self.is_switch:
            return str(int(value != self.is_negated))
        return str(value * self.scale) if self.scale != 1 else text


class Always(Flag):
    """Asks for something that is always on; nothing is reported."""

    __slots__ = ()


class NoEffect(Flag):
    """Has no effect, and the job computes the same without it: hvdrun says so, and the job runs."""

    __slots__ = ()


class Refused(Flag):
    """Asks for something that the user would not get."""

    __slots__ = ()


class Given(NamedTuple):
    """A flag that the user gave a value."""

    flag: Flag
    label: str
    text: str


class Outcome(NamedTuple):
    """The effect of all given flags: values by setting, and lines for the user about flags without effect."""

    settings: Mapping[str, str]
    notes: tuple[str, ...]


def resolve(configured: Iterable[Given], typed: Iterable[Given]) -> Outcome:
    """Merges a file and the command line, of which ``typed`` wins.

    Raises ValueError for an invalid, contradictory or refused value.
    """
    typed = tuple(typed)
    decided = {given.flag for given in typed}
    idle: dict[str, list[str]] = {}
    settings = _settings((given for given in configured if given.flag not in decided), idle) | _settings(typed, idle)
    return Outcome(settings, tuple(_note(labels, why) for why, labels in idle.items()))


def _settings(source: Iterable[Given], idle: dict[str, list[str]]) -> dict[str, str]:
    settings: dict[str, str] = {}
    label_of: dict[str, str] = {}
    for given in source:
        flag, label = given.flag, given.label
        if isinstance(flag, Sets):
            value = flag.value(label, given.text)
            if settings.setdefault(flag.setting, value) != value:
                raise ValueError(f"{label_of[flag.setting]} and {label} contradict each other.")
            label_of[flag.setting] = label
        elif flag.is_switch and not parse_switch(label, given.text):
            continue
        elif isinstance(flag, Refused):
            raise ValueError(f"{label} is refused: {flag.note}.")
        elif isinstance(flag, NoEffect):
            idle.setdefault(flag.note, []).append(label)
    return settings


def _note(labels: list[str], why: str) -> str:
    return f"{', '.join(labels)} {'has' if len(labels) == 1 else 'have'} no effect: {why}."
