"""Leaves hvdlite's own frames out of the traceback of an error that the user mends.

An error that ends the program is printed by ``sys.excepthook``. `install` puts one before it that cuts off the frames
below the user's call, of errors that say by themselves what is wrong, and of those that they were raised from. An error
that is caught keeps its whole traceback, and calls that succeed cost nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Final

from hvdlite.errors import LaunchError, Mismatch, PeerLost, ShutDown, Stalled
from hvdlite.settings import Settings

_OF_THE_USER: Final = (ValueError, TypeError, Mismatch, PeerLost, ShutDown, Stalled, LaunchError)
_OURS: Final = str(Path(__file__).resolve().parent) + "/"
_PROGRAMS: Final = _OURS + "bench/"  # called by nobody


def install() -> None:
    """Shortens what ``sys.excepthook`` prints, unless ``HVDLITE_TRACEBACK=full``. Call it once."""
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shorten(error)
        before(kind, error, trace)

    sys.excepthook = show


def shorten(error: BaseException) -> None:
    """Cuts the frames below the user's call off ``error`` and what it was raised from, as the setting says."""
    try:
        if Settings.read().traceback == "full":
            return
    except ValueError:
        pass  # the error may be about the settings
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        left += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
        if isinstance(each, _OF_THE_USER):
            _cut(each.__traceback__)


def _cut(trace: TracebackType | None) -> None:
    last = None  # the last frame that is not ours
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_OURS) or file.startswith(_PROGRAMS):
            last = trace
        trace = trace.tb_next
    if last is not None:
        last.tb_next = None
