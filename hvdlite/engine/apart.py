"""Runs uninterruptible work in a thread in which no signal handler raises."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LOOK_S = 0.2  # as in `hvdlite.engine.deputy`


class Interruption:
    """The reason why the caller of `run_apart` stopped waiting, if it did. Any thread may read it."""

    cause = ""


def is_seen(is_over: threading.Lock) -> bool:
    """Waits a moment for ``is_over`` to be released. True if it was. Signal handlers run meanwhile."""
    return is_over.acquire(timeout=_LOOK_S)


def run_apart(
    function: Callable[[Interruption], T],
    what: str,
    is_vain: Callable[[], BaseException | None] | None = None,
    patience_s: float = 0.0,
) -> T:
    """Returns or raises what ``function`` does. The main thread waits while another thread calls it.

    When a signal handler raises meanwhile, the wait ends, and ``function``, which goes on, can see that: ``what`` was
    interrupted. It has ``patience_s`` to end before the caller hears of it. The wait also ends, in any thread, with
    what ``is_vain`` returns, if ``function`` does not notice by itself that it goes on in vain.
    """
    interruption = Interruption()
    if is_vain is None and threading.get_ident() != threading.main_thread().ident:
        return function(interruption)
    results: list[T] = []
    errors: list[BaseException] = []
    is_over = threading.Lock()  # only ever taken here, so that an interrupt cannot leave it locked for the other thread
    is_over.acquire()

    def run() -> None:
        try:
            results.append(function(interruption))
        except BaseException as error:  # the caller raises it
            errors.append(error)
        finally:
            is_over.release()

    thread = threading.Thread(target=run, name="hvdlite-apart", daemon=True)

    def start() -> None:
        try:
            thread.start()
        except RuntimeError:  # too many threads
            run()

    try:
        try:
            _thread.start_new_thread(start, ())  # atomic; an interrupt could stop `Thread.start` halfway
        except RuntimeError as error:
            if _has_passed_a_function(error):  # raised by a signal handler
                raise
            run()  # the interpreter is shutting down
        end = None
        while not is_seen(is_over):
            if end is not None:
                raise end
            end = is_vain() if is_vain else None
    except BaseException as error:
        interruption.cause = f"{what} was interrupted by {type(error).__name__}"
        if patience_s > 0:
            is_over.acquire(timeout=patience_s)
        raise
    if errors:
        raise errors[0]
    return results[0]


def _has_passed_a_function(error: BaseException) -> bool:
    """True if the error passed a Python function, and was not raised by the wait here itself."""
    trace = error.__traceback__
    return trace is not None and trace.tb_next is not None
