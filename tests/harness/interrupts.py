"""Signals that come before a given bytecode of hvdlite, in the main thread, and whose handler raises.

Python itself runs handlers at some of these places only.
"""

from __future__ import annotations

import dis
import os
import signal
import sys
from types import FrameType
from typing import Any, Final

import hvdlite as hvd

_OURS: Final = os.path.dirname(hvd.__file__)
_RETURN: Final = dis.opmap["RETURN_VALUE"]  # before which Python runs no handler, and no function can undo what it did


class Interrupt(BaseException):
    """What the handler raises."""


def raise_interrupt(*_: Any) -> None:
    """The handler."""
    raise Interrupt


def is_ours(frame: FrameType) -> bool:
    """Whether it is of a function of hvdlite."""
    return frame.f_code.co_filename.startswith(_OURS)


class At:
    """A context in which SIGUSR1 comes before bytecode ``number``. ``where`` tells which, if there was one."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.where = ""

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not is_ours(frame):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] != _RETURN:
            self._left -= 1
            if self._left == -1:
                sys.settrace(None)
                self.where = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                signal.raise_signal(signal.SIGUSR1)
        return self._trace
