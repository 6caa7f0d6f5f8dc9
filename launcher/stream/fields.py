"""Makes a message of the fields that another process has sent, which may be anything.

A message is a NamedTuple, and the annotation of each of its fields has a check: ``Annotated[int, integer(0, 7)]``. A
check returns the value to use, or raises ValueError. `read` applies the checks, and nobody else looks at fields. A
module that defines messages has no ``from __future__ import annotations``, which would hide the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Annotated, Any, Final, TypeVar, cast

from hvdlite.blackbox.format import printable
from hvdlite.net.untrusted import parse

from .frames import FrameError

MOST_CHARACTERS: Final = 10_000
"""Of a text for the user: a reason may have a path of 4096 bytes."""
_MOST_SHOWN: Final = 200
_MOST: Final = float(1 << 63)  # no time, speed, size or count comes near it
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


def read(kind: type[_Message], fields: object) -> _Message:
    """The message of this ``kind``; a field that is missing has its default, if the NamedTuple has one.

    Raises FrameError that names a field that is missing or improper.
    """
    found, defaults = fields if isinstance(fields, dict) else {}, cast(Any, kind)._field_defaults
    checks = {name: check for name, check in _checks(cast(Any, kind)).items() if name in found or name not in defaults}
    return kind(**checked(f"the message {kind.__name__}", checks, found))


def checked(what: str, checks: Mapping[str, Check], fields: object) -> dict[str, Any]:
    """The fields that have ``checks``. Raises FrameError that names ``what`` and the improper field."""
    values: dict[str, Any] = {}
    for name, check in checks.items():
        try:
            values[name] = check(fields[name] if isinstance(fields, dict) else None)
        except FrameError:  # it names a field of a message in this one
            raise
        except (KeyError, ValueError):
            raise FrameError(f"{what} has no valid {name!r}") from None
    return values


@cache
def _checks(kind: Any) -> dict[str, Check]:
    return {name: annotation.__metadata__[0] for name, annotation in kind.__annotations__.items()}


def shown(value: object) -> str:
    """Any value as a printable text, shortened."""
    return printable(str(value)[:_MOST_SHOWN])


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


def one_of(values: Collection[int | str]) -> Check:
    """One of these integers or texts."""

    def check(value: Any) -> Any:
        if type(value) not in (int, str) or value not in values:
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


def short(value: Any) -> str:
    """A text for the user, which is shortened and becomes printable."""
    return shown(exactly(str)(value))


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


def listed(value: object) -> list[Any]:
    """``value`` if it is a list, and nothing for anything else."""
    return value if isinstance(value, list) else []


def record(kind: type[Any]) -> Check:
    """The fields of a message of this ``kind``."""
    return lambda value: read(kind, exactly(dict)(value))


Count = Annotated[int, integer(0, (1 << 63) - 1)]
Figure = Annotated[float, number()]
Yes = Annotated[bool, exactly(bool)]
Short = Annotated[str, short]
Line = Annotated[str, line()]
