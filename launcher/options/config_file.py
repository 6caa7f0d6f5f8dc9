"""``--config-file``: the sections and keys of Horovod's YAML file, each of which is a flag of the table.

Of YAML it takes what such files use: keys with one plain or quoted value, in sections, and comments. Everything else is
refused by its line, so that no file means something else here than to other readers. A value stays text until its flag
checks it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NamedTuple

from .flags import Flag, Given
from .table import FLAGS

_LINE: Final = re.compile(
    r"""(?P<indent>\ *)(?P<key>[A-Za-z_][\w-]*)\ *:
    (?:[ \t]+(?P<value>
        '(?:[^']|'')*' | "[^"\\]*"                                     # in quotes, without backslashes
        | (?:[^-?:,\[\]{}&*!|>%@`'"\#\s] | [-?:](?=\S))                # plain: it does not begin as anything else,
          (?:[^:\#] | :(?=\S) | (?<=\S)\#)*?                            # and has neither ': ' nor ' #'
    ))?
    [ \t]*(?:(?<=[ \t])\#.*)?""",
    re.VERBOSE,
)
_NULLS: Final = (None, "~", "null", "Null", "NULL")
_FLAG_OF_KEY: Final[Mapping[str, Flag]] = {flag.key: flag for flag in FLAGS if flag.key}
_SECTIONS: Final = tuple(dict.fromkeys(key.partition(".")[0] for key in _FLAG_OF_KEY))
_CONTROLLERS: Final = {flag.names[0].strip("-"): flag for flag in FLAGS if flag.names[0] in ("--gloo", "--mpi")}


class Entry(NamedTuple):
    """A section or a key; ``path`` is its name, or that of its section, a dot and its name. ``text`` may be absent."""

    path: str
    text: str | None
    line: int


def read_config(path: str) -> Iterator[Given]:
    """Reads the flags that the file sets. Raises ValueError that names file, line and key for unknown entries."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"--config-file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"--config-file {path} cannot be read: it is not text in UTF-8.") from None
    try:
        entries = list(read_entries(text))
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None
    for entry in entries:
        label = f"{path}, line {entry.line}: {entry.path}"
        flag = _flag(label, entry)
        if flag is not None and entry.text is not None:
            is_choice = entry.path == "controller"
            yield Given(flag, f"{label}: {entry.text}" if is_choice else label, "1" if is_choice else entry.text)


def read_entries(text: str) -> Iterator[Entry]:
    """The entries in the order of the text. Raises ValueError that begins with the line number."""
    section, outer, inner, takes_keys = "", -1, -1, False  # of the present section; the indentations, -1 before any
    line_of: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        content = line.strip()
        if not content or content[0] == "#" or (outer < 0 and re.fullmatch(r"---(\s+#.*)?", content)):
            continue
        if "\t" in line[: line.index(content)]:
            raise ValueError(f"line {number}: a tab indents it; write spaces.")
        if (match := _LINE.fullmatch(line.rstrip())) is None:
            raise ValueError(f"line {number}: {content!r} is not 'key: value' with one value, plain or in quotes.")
        path = key = match["key"]
        indent, value = len(match["indent"]), match["value"]
        outer = indent if outer < 0 else outer
        if indent == outer:
            section, inner, takes_keys = key, -1, value is None
        elif indent < outer or inner not in (-1, indent):
            raise ValueError(f"line {number}: {key!r} is indented like no line above it.")
        elif not takes_keys:
            raise ValueError(f"line {number}: {key!r} is indented, but {section} above it has a value.")
        else:
            path, inner = f"{section}.{key}", indent
        if line_of.setdefault(path, number) != number:
            raise ValueError(f"line {number}: {path} was given in line {line_of[path]} already.")
        if value is not None and value[0] in "'\"":
            value = value[1:-1].replace("''", "'") if value[0] == "'" else value[1:-1]
            yield Entry(path, value, number)
        else:
            yield Entry(path, None if value in _NULLS else value, number)


def _flag(label: str, entry: Entry) -> Flag | None:
    """The flag that the entry stands for; None if it is a section without keys."""
    if entry.path == "controller" and entry.text is not None:
        if entry.text not in _CONTROLLERS:
            raise ValueError(f"{label}={entry.text!r} must be one of {', '.join(_CONTROLLERS)}.")
        return _CONTROLLERS[entry.text]
    if entry.path in _FLAG_OF_KEY:
        return _FLAG_OF_KEY[entry.path]
    if entry.text is None and entry.path in ("controller", *_SECTIONS):
        return None
    problem = "holds keys of its own" if entry.path in _SECTIONS else "is not known"
    raise ValueError(f"{label} {problem}; {_legal(entry.path)}")


def _legal(path: str) -> str:
    """The keys that are valid in place of ``path``, with the most likely correction."""
    section, _, key = path.partition(".")
    if section in _SECTIONS:
        names = [name.partition(".")[2] for name in _FLAG_OF_KEY if name.startswith(f"{section}.")]
        legal = f"{section} has {', '.join(names)}."
    else:
        key, names = section, ["controller", *_SECTIONS]
        legal = f"the file has {', '.join(names)}."
    close = get_close_matches(key, names, n=1)
    return f"did you mean {close[0]}? {legal}" if close else legal
