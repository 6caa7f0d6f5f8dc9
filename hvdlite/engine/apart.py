"""Runs work of the main thread in another thread, so that a signal handler that raises cannot stop it halfway.

The other thread does the work in a `Scope`. The main thread only waits for it, in short waits, and cancels the
scope if a handler raises.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from hvdlite.scope import Scope

T = TypeVar("T")

POLL_S: Final = 0.2
"""Longest system call of a main thread that waits: a signal received by another thread does not interrupt it."""


def wait_briefly(is_over: threading.Lock) -> bool:
    """Waits up to `POLL_S` for ``is_over`` to be released. True if it was. Signal handlers run meanwhile."""
    return is_over.acquire(timeout=POLL_S)


def do_apart(work: Callable[[Scope], T], what: str, patience_s: float = 0.0, within: Scope | None = None) -> T:
    """Calls ``work`` with a scope ``within`` that of the caller, and returns its result or raises its error.

    In the main thread, ``work`` runs in another thread; in any other thread it runs here. If a signal handler raises
    while the main thread waits, the scope is cancelled with a text that names ``what``. The work may go on; it has
    ``patience_s`` to end before the caller gets the exception.
    """
    scope = Scope(within=within)
    if threading.get_ident() != threading.main_thread().ident:
        return work(scope)
    results: list[T] = []
    errors: list[BaseException] = []
    is_over = threading.Lock()  # only this thread acquires it, so an interrupt cannot leave it locked for the other one
    is_over.acquire()

    def run() -> None:
        try:
            results.append(work(scope))
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
        while not wait_briefly(is_over):
            pass
    except BaseException as error:
        scope.cancel(f"{what} was interrupted by {type(error).__name__}")
        patience = Scope.of(patience_s)
        while not patience.is_over and not wait_briefly(is_over):
            pass
        raise
    if errors:
        raise errors[0]
    return results[0]


def _has_passed_a_function(error: BaseException) -> bool:
    """True if the error passed a Python function, and was not raised by the wait here itself."""
    trace = error.__traceback__
    return trace is not None and trace.tb_next is not None
