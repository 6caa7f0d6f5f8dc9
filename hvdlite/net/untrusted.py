"""JSON that another process has written, which may be anything. It needs the standard library only, as agents do.

Python parses, prints, compares and writes nested lists and objects by recursion, each with a limit of its own. A value
that is parsed near the limit would fail later, where no one expects it. hvdlite's own messages have a few levels, so a
far lower limit is checked here.
"""

from __future__ import annotations

import json
from typing import Any, Final

DEEPEST: Final = 32  # levels of lists and objects


def parse(text: str | bytes | bytearray) -> Any:
    """The value in ``text``. Raises ValueError if that is no JSON, or nested more than `DEEPEST` levels deep."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return value
    raise ValueError("it is nested too deeply")


def _inside(value: Any) -> Any:
    if type(value) is dict:
        return value.values()
    return value if type(value) is list else ()
