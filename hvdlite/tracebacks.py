"""Leaves hvdlite's own frames out of the tracebacks of errors that the user can fix, and of Ctrl-C.

``sys.excepthook``, ``threading.excepthook``, and in a notebook IPython show uncaught errors. `install` puts one step
before each, which cuts off the frames below the user's call, if the text of the error explains it. The unexpected cause
of an HvdError keeps its frames. A program that catches an error gets the whole traceback, and successful calls cost
nothing, because no public function catches errors for this.
"""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType
from typing import Any, Final

from hvdlite.errors import HvdError
from hvdlite.settings import Settings

_OF_THE_USER: Final = (
    ValueError,
    TypeError,
    AssertionError,  # with a text: Horovod's class for steps in a wrong order
    HvdError,
    KeyboardInterrupt,
)
_OURS: Final = os.path.dirname(__file__) + "/"  # as code objects have it: a link on the way stays one
_PROGRAMS: Final = _OURS + "bench/"  # not called by users
_STANDARD: Final = os.path.dirname(os.__file__) + "/"
_FRAMEWORKS: Final = ("torch",)
_INSTALLED: Final = (_STANDARD + "site-packages/", _STANDARD + "dist-packages/")


def install() -> None:
    """Shortens tracebacks that are shown, unless ``HVDLITE_TRACEBACK=full``. Call it once."""
    shows, shows_in_thread = sys.excepthook, threading.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt) and _is_hvdrun(sys.argv[0]):
            print("hvdrun: interrupted before anything was started", file=sys.stderr)
            return
        shorten(error)
        shows(kind, error, error.__traceback__)

    def show_in_thread(arguments: Any) -> None:
        if arguments.exc_value is not None:
            shorten(arguments.exc_value)
        shows_in_thread(arguments)

    sys.excepthook, threading.excepthook = show, show_in_thread
    if (ipython := sys.modules.get("IPython")) is not None and (shell := ipython.get_ipython()) is not None:
        _install_in(shell)


def _is_hvdrun(program: str) -> bool:
    return os.path.basename(program) == "hvdrun" or program == f"{_OURS}__main__.py"


def _install_in(shell: Any) -> None:
    """Does the same in a notebook, unless its user has installed a handler already."""

    def show(shell: Any, kind: type[BaseException], error: BaseException, trace: Any, tb_offset: Any = None) -> None:
        shorten(error)
        shell.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset)

    if not shell.custom_exceptions:
        shell.set_custom_exc(_OF_THE_USER, show)


def shorten(error: BaseException) -> None:
    """Cuts off the frames below the user's call, of ``error`` and of its causes, unless the setting is "full"."""
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
        cause = each.__cause__
        if isinstance(cause, HvdError) and str(cause) in str(each):
            each.__cause__ = None  # to show its text only once
        elif isinstance(cause, HvdError) or not isinstance(each, HvdError):
            left.append(cause)
        if each.__context__ is not cause:
            left.append(each.__context__)
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
        is_bug = isinstance(each, AssertionError) and not each.args
        if isinstance(each, _OF_THE_USER) and not is_bug:
            each.__traceback__ = _cut(each.__traceback__, isinstance(each, KeyboardInterrupt))


def _cut(trace: TracebackType | None, may_wait_elsewhere: bool) -> TracebackType | None:
    """Cuts ``trace`` below the user's call, even if it ends inside the standard library; None if there is no such call.

    A framework's frames between two of ours, as of ``torch.no_grad``, are not the user's either.
    """
    first = trace
    last = None  # the last frame of the user, or of another library
    between = None  # a later frame of a framework that we called
    is_within = False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        is_ours = file.startswith(_OURS) and not file.startswith(_PROGRAMS)
        if is_ours:
            between = None
        elif is_within and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _FRAMEWORKS:
            between = trace
        elif not (is_within and may_wait_elsewhere and _is_standard(file)):
            last, between = trace, None
        is_within = is_ours or (is_within and last is not trace)
        trace = trace.tb_next
    if (last := between or last) is None:
        return None
    last.tb_next = None
    return first


def _is_standard(file: str) -> bool:
    return file.startswith((_STANDARD, "<frozen ")) and not file.startswith(_INSTALLED)
