"""The environment of a process, as the rows of the table read it."""

from __future__ import annotations

import re
from collections.abc import Mapping

Environ = Mapping[str, str]


def number(environ: Environ, name: str) -> int:
    """The whole number in the variable ``name``. Raises ValueError that names it."""
    text = environ.get(name, "")
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise ValueError(f"{name}={text!r} must be a whole number; whatever started this process has set it")
    return int(text)
