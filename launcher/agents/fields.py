"""The fields of what an agent answers, checked one by one: it runs on another machine, and may say anything.

Functions raise ValueError that names the field. Text is cut, and what could steer a terminal is taken out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MAX_TEXT: Final = 200
_MAX_NUMBER: Final = 1 << 63  # no time, speed, size or count comes near it


def field(answer: Any, name: str, kind: type) -> Any:
    """The field ``name`` of ``answer``, which must have exactly this type."""
    value = answer.get(name) if isinstance(answer, Mapping) else None
    if type(value) is not kind:
        raise improper(name)
    return value


def count(answer: Any, name: str) -> int:
    """A whole number that is not negative."""
    value: int = field(answer, name, int)
    if not 0 <= value < _MAX_NUMBER:
        raise improper(name)
    return value


def figure(answer: Any, name: str) -> float:
    """A number that is finite and not negative."""
    value: Any = answer.get(name) if isinstance(answer, Mapping) else None
    if type(value) not in (int, float) or not 0 <= value < _MAX_NUMBER:
        raise improper(name)
    return float(value)


def text(answer: Any, name: str) -> str:
    """A text that can be shown."""
    return shown(field(answer, name, str))


def shown(value: Any) -> str:
    """Anything as a text that can be shown."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(value)[:_MAX_TEXT])


def improper(name: str) -> ValueError:
    """The error about a field that is missing, or of another type or size than it must be."""
    return ValueError(f"the agent's answer has no proper {name!r}")
