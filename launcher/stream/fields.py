"""Makes a message of the fields that another process has sent, which may be anything.

A message is a NamedTuple, and the annotation of each of its fields has a check: ``Annotated[int, integer(0, 7)]``. A
check returns the value to use, or raises ValueError. `read` applies the checks, and nobody else looks at fields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, Final, TypeVar, cast

from hvdlite.blackbox.format import printable
from hvdlite.net.untrusted import parse

from .frames import FrameError

MOST_CHARACTERS: Final = 10_000
"""Of a text for the user: a reason may have a path of 4096 bytes."""
_MOST: Final = float(1 << 63)  # no time comes near it
Check = Callable[[Any], Any]
_Message = TypeVar("_Message")


def parse_fields(payload: bytes) -> dict[str, Any]:
    """The fields in a JSON object. Raises FrameError if the payload holds none."""
    try:
        fields = parse(payload)
    except ValueError as error:
        raise FrameError(f"a frame holds no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise FrameError(f"a frame holds {type(fields).__name__} instead of fields")
    return fields


def read(kind: type[_Message], fields: Mapping[str, Any]) -> _Message:
    """The message of this ``kind``. Raises FrameError that names a field that is missing or improper."""
    values = []
    for name, check in _checks(cast(Any, kind)).items():
        try:
            values.append(check(fields[name]))
        except (KeyError, ValueError):
            raise FrameError(f"the message {kind.__name__} has no valid {name!r}") from None
    return kind(*values)


@cache
def _checks(kind: Any) -> dict[str, Check]:
    return {name: annotation.__metadata__[0] for name, annotation in kind.__annotations__.items()}


# ---- checks


def exactly(kind: type) -> Check:
    """A value of exactly this type."""

    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError
        return value

    return check


def integer(least: int, most: int) -> Check:
    """An integer in this range."""

    def check(value: Any) -> Any:
        if type(value) is not int or not least <= value <= most:
            raise ValueError
        return value

    return check


def one_of(integers: Collection[int]) -> Check:
    """One of these integers."""

    def check(value: Any) -> Any:
        if type(value) is not int or value not in integers:
            raise ValueError
        return value

    return check


def number(least: float = 0.0, most: float = _MOST) -> Check:
    """A finite number in this range."""

    def check(value: Any) -> Any:
        if type(value) not in (int, float) or not least <= value <= most:
            raise ValueError
        return float(value)

    return check


def text(most: int) -> Check:
    """A text of at most ``most`` characters."""

    def check(value: Any) -> Any:
        if type(value) is not str or len(value) > most:
            raise ValueError
        return value

    return check


def line(most: int = MOST_CHARACTERS) -> Check:
    """A text for the user, which becomes one line without control characters."""
    check = text(most)
    return lambda value: printable(" ".join(check(value).split()))


def optional(check: Check) -> Check:
    """None, or what ``check`` takes."""
    return lambda value: None if value is None else check(value)


def each(check: Check, most: int) -> Check:
    """A list of at most ``most`` values that ``check`` takes."""

    def checked(value: Any) -> Any:
        if type(value) is not list or len(value) > most:
            raise ValueError
        return tuple(map(check, value))

    return checked


def mapping(check: Check) -> Check:
    """An object whose values ``check`` takes."""
    return lambda value: {name: check(each) for name, each in exactly(dict)(value).items()}


def row(kind: Callable[..., Any], checks: tuple[Check, ...]) -> Check:
    """A list with a value for each of ``checks``, which become a ``kind``."""

    def check(value: Any) -> Any:
        if type(value) is not list or len(value) != len(checks):
            raise ValueError
        return kind(*(check(each) for check, each in zip(checks, value, strict=True)))

    return check
