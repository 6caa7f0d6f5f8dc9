"""Checks the fields of an agent's answer: it runs on another machine, and may send anything.

Functions raise ValueError that names the field. Text is shortened, and control characters are removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hvdlite.observe.blackbox import printable as printable

_MAX_TEXT: Final = 200
_MOST_CHARACTERS: Final = 10_000  # a reason may have a path of 4096 bytes
_MOST_LINES: Final = 20
_MAX_NUMBER: Final = 1 << 63  # no time, speed, size or count comes near it


def field(answer: Any, name: str, kind: type) -> Any:
    """The field ``name`` of ``answer``, which must have exactly this type."""
    value = answer.get(name) if isinstance(answer, Mapping) else None
    if type(value) is not kind:
        raise improper(name)
    return value


def count(answer: Any, name: str) -> int:
    """A non-negative integer."""
    value: int = field(answer, name, int)
    if not 0 <= value < _MAX_NUMBER:
        raise improper(name)
    return value


def figure(answer: Any, name: str) -> float:
    """A finite, non-negative number."""
    value: Any = answer.get(name) if isinstance(answer, Mapping) else None
    if type(value) not in (int, float) or not 0 <= value < _MAX_NUMBER:
        raise improper(name)
    return float(value)


def integer(answer: Any, name: str, least: int, most: int) -> int:
    """An integer from ``least`` to ``most``."""
    value: int = field(answer, name, int)
    if not least <= value <= most:
        raise improper(name)
    return value


def text(answer: Any, name: str) -> str:
    """A printable text."""
    return shown(field(answer, name, str))


def line(told: object) -> str:
    """The text ``told`` on one line. Raises ValueError if it is none, or too long to be shown."""
    if not isinstance(told, str) or len(told) > _MOST_CHARACTERS:
        raise ValueError(f"a text of at most {_MOST_CHARACTERS} characters is missing")
    return printable(" ".join(told.split()))


def lines(told: object) -> tuple[str, ...]:
    """The texts ``told``, each on one line. Raises ValueError if they are none, or too many to be shown."""
    if not isinstance(told, list) or len(told) > _MOST_LINES:
        raise ValueError(f"a list of at most {_MOST_LINES} texts is missing")
    return tuple(map(line, told))


def ended_by(told: object) -> tuple[int, str] | None:
    """The rank because of which another ended, and its fate. Raises ValueError if that is neither told nor None."""
    if told is None:
        return None
    if not isinstance(told, list) or [type(each) for each in told] != [int, str]:
        raise ValueError("it does not say which rank ended another")
    return told[0], line(told[1])


def shown(value: Any) -> str:
    """Any value as a printable text."""
    return printable(str(value)[:_MAX_TEXT])


def improper(name: str) -> ValueError:
    """The error for a field that is missing or has the wrong type or size."""
    return ValueError(f"the agent's answer has no valid {name!r}")
