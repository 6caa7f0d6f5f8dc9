"""Checks the fields of an agent's answer: it runs on another machine, and may send anything.

Functions raise ValueError that names the field. Text is shortened, and control characters are removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hvdlite.blackbox.format import printable as printable

_MAX_TEXT: Final = 200
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


def text(answer: Any, name: str) -> str:
    """A printable text."""
    return shown(field(answer, name, str))


def shown(value: Any) -> str:
    """Any value as a printable text."""
    return printable(str(value)[:_MAX_TEXT])


def improper(name: str) -> ValueError:
    """The error for a field that is missing or has the wrong type or size."""
    return ValueError(f"the agent's answer has no valid {name!r}")
