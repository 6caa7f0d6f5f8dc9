"""``--config-file``: the sections and keys of Horovod's YAML file, each of which is a flag of the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from .flags import Flag, Given
from .table import FLAGS
from .yaml_mapping import Entry, read_mapping

_FLAG_OF_KEY: Final[Mapping[str, Flag]] = {flag.key: flag for flag in FLAGS if flag.key}
_SECTIONS: Final = tuple(dict.fromkeys(key.partition(".")[0] for key in _FLAG_OF_KEY))
_CONTROLLERS: Final = {flag.names[0].strip("-"): flag for flag in FLAGS if flag.names[0] in ("--gloo", "--mpi")}


def read_config(path: str) -> Iterator[Given]:
    """Reads the flags that the file sets. Raises ValueError that names file, line and key for unknown entries."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"--config-file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"--config-file {path} cannot be read: it is not text in UTF-8.") from None
    try:
        entries = list(read_mapping(text))
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None
    for entry in entries:
        label = f"{path}, line {entry.line}: {entry.path}"
        flag = _flag(label, entry)
        if flag is not None and entry.text is not None:
            is_choice = entry.path == "controller"
            yield Given(flag, f"{label}: {entry.text}" if is_choice else label, "1" if is_choice else entry.text)


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
        told = f"{section} has {', '.join(names)}."
    else:
        key, names = section, ["controller", *_SECTIONS]
        told = f"the file has {', '.join(names)}."
    close = get_close_matches(key, names, n=1)
    return f"did you mean {close[0]}? {told}" if close else told
