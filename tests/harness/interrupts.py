"""Signals before a chosen bytecode of hvdlite in the main thread, whose handler raises.

Python itself runs handlers only at some of these places.
"""

from __future__ import annotations

import contextlib
import dis
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import hvdlite as hvd

_OURS: Final = os.path.dirname(hvd.__file__)
_RETURN: Final = dis.opmap["RETURN_VALUE"]  # Python runs no handler before it, and no function can undo its effect

_LAST: Final = 1000.0


class Interrupt(BaseException):
    """The exception of the handler."""


def raise_interrupt(*_: Any) -> None:
    """The handler."""
    raise Interrupt


def is_ours(frame: FrameType) -> bool:
    """True if it belongs to a function of hvdlite."""
    return frame.f_code.co_filename.startswith(_OURS)


class At:
    """A context in which SIGUSR1 comes before bytecode ``number``. ``where`` describes that one, if it was reached."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.where = ""

    def __enter__(self) -> At:
        sys.settrace(self._trace)
        return self

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


def interrupt_everywhere(call: Callable[[float], float], step: int = 1) -> int:
    """Interrupts ``call`` on rank 0 at every ``step``-th of its bytecodes; returns the number of bytecodes.

    ``call`` returns rank 0's argument on every rank. An interrupted call has the argument 1, takes part all the same,
    and is repeated with 2.
    """
    number, is_over, seen = 0, False, []
    if hvd.rank() == 0:
        signal.signal(signal.SIGUSR1, raise_interrupt)
        while not is_over:
            at = At(number)
            with contextlib.suppress(Interrupt), at:
                assert call(1.0) == 1.0
            is_over = not at.where
            assert call(_LAST if is_over else 2.0) == (_LAST if is_over else 2.0), at.where
            number += step
    else:
        while not seen or seen[-1] != _LAST:
            seen.append(call(0.0))
        assert set(seen) == {1.0, 2.0, _LAST}
    return number
