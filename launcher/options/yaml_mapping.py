"""Reads the part of YAML that configuration files use: mappings nested by indentation, scalars and comments.

Everything else in YAML (lists, anchors, tags, multi-line text, braces) is refused by name and line, so that no file
means something else here than to other readers. Scalars stay text: the user of a key knows its type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

_LINE: Final = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z_][\w-]*) *:(?:[ \t]+(?P<value>.*))?")
_QUOTED: Final = re.compile(r"""(?:'(?P<single>(?:[^']|'')*)'|"(?P<double>[^"\\]*)")(?P<rest>.*)""")
_COMMENT: Final = re.compile(r"(?:^|[ \t]+)#.*")
_OTHER: Final = {
    "-": "a list", "[": "a list", "{": "a mapping in braces", "&": "an anchor", "*": "an alias", "!": "a tag",
    "|": "text over several lines", ">": "text over several lines", "%": "a directive", "?": "a key of several lines",
    "@": "a reserved sign", "`": "a reserved sign",
}  # fmt: skip
_NULLS: Final = {"", "~", "null", "Null", "NULL"}


@dataclass(frozen=True, slots=True)
class Entry:
    """``path`` has the keys down to a scalar, joined by dots; ``text`` is None if there is no value."""

    path: str
    text: str | None
    line: int


def read_mapping(text: str) -> Iterator[Entry]:
    """The scalars of a mapping in the order of the text. Raises ValueError that begins with the line number."""
    levels: list[int] = []  # the indentations of the mappings around the present line
    names: list[str] = []  # and the keys down to it
    line_of: dict[str, int] = {}
    lines = list(_lines(text))
    for line, below in zip_longest(lines, lines[1:]):
        _enter(levels, line)
        names[len(levels) - 1 :] = [line.key]
        path = ".".join(names)
        if line_of.setdefault(path, line.number) != line.number:
            raise ValueError(f"line {line.number}: {path} was given in line {line_of[path]} already.")
        if below is None or below.indent <= line.indent:
            yield Entry(path, line.value, line.number)
        elif not line.is_bare:
            raise ValueError(f"line {below.number}: {below.key!r} is indented, but {path} above it has a value.")


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    indent: int
    key: str
    value: str | None
    is_bare: bool  # nothing, not even null, is behind the colon


def _lines(text: str) -> Iterator[_Line]:
    has_begun = False
    for number, line in enumerate(text.split("\n"), 1):
        content = _COMMENT.sub("", line).strip()
        if not content or (content == "---" and not has_begun):
            continue
        has_begun = True
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number}: {_complaint(line)}")
        raw = (match["value"] or "").strip()
        yield _Line(number, len(match["indent"]), match["key"], _scalar(number, raw), not _COMMENT.sub("", raw))


def _enter(levels: list[int], line: _Line) -> None:
    """Makes the last of ``levels`` the mapping that ``line`` belongs to."""
    if not levels or line.indent > levels[-1]:
        levels.append(line.indent)
    while levels and levels[-1] > line.indent:
        levels.pop()
    if not levels or levels[-1] != line.indent:
        raise ValueError(f"line {line.number}: {line.key!r} is indented like no line above it.")


def _complaint(line: str) -> str:
    content = line.strip()
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "a tab indents it; write spaces."
    if content in ("---", "..."):
        return "a second document begins; only one is read."
    if content[0] in _OTHER:
        return f"{_OTHER[content[0]]} is not understood; write 'key: value'."
    return f"{content!r} is not 'key: value'."


def _scalar(number: int, raw: str) -> str | None:
    if quoted := _QUOTED.fullmatch(raw):
        if _COMMENT.sub("", quoted["rest"]):
            raise ValueError(f"line {number}: {quoted['rest'].strip()!r} stands behind a text in quotes.")
        return quoted["double"] if quoted["single"] is None else quoted["single"].replace("''", "'")
    plain = _COMMENT.sub("", raw)
    if plain[:1] in _OTHER and not re.match(r"-\S", plain):
        raise ValueError(f"line {number}: {_OTHER[plain[0]]} is not understood; write one value, or quote it.")
    if plain[:1] in ("'", '"'):
        raise ValueError(f"line {number}: {plain} is not a text in quotes; it ends in its line and has no backslashes.")
    if re.search(r":(?:\s|$)", plain):
        raise ValueError(f"line {number}: {plain!r} has a colon; put it in quotes, or its key on a line of its own.")
    return None if plain in _NULLS else plain
