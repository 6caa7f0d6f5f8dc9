"""The calls of a thread, the innermost first, and which of them are hvdlite's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from types import FrameType

Call = tuple[str, int, str]
"""The file, the line and the function."""


def calls_of(frame: FrameType | None) -> Iterator[Call]:
    """The calls of a stack, from its innermost ``frame`` on."""
    while frame is not None:
        code = frame.f_code
        yield code.co_filename, frame.f_lineno or 0, code.co_qualname
        frame = frame.f_back


def without_ours(calls: Iterable[Call], ours: str) -> Iterator[Call]:
    """``calls`` without calls from hvdlite, in the folder ``ours``, to itself: only the user's call is left."""
    for call, caller in pairwise(chain(calls, [None])):
        if call is not None and not (call[0].startswith(ours) and caller is not None and caller[0].startswith(ours)):
            yield call
