"""Runs what all ranks do together in several steps, so that a signal handler cannot stop it in the middle."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LOOK_S = 0.2  # as in `hvdlite.runtime.deputy`


class Interruption:
    """Why the caller of `run_apart` no longer waits, if it does not. Any thread may look."""

    cause = ""


def run_apart(
    function: Callable[[Interruption], T], what: str, is_vain: Callable[[], BaseException | None] | None = None
) -> T:
    """What ``function`` returns or raises. The main thread has another one call it, and waits.

    When a signal handler raises meanwhile, the wait ends, and ``function``, which goes on, can see that: ``what`` was
    interrupted. The wait also ends, in any thread, with what ``is_vain`` returns, if ``function`` does not notice by
    itself that it goes on in vain.
    """
    interruption = Interruption()
    if is_vain is None and threading.current_thread() is not threading.main_thread():
        return function(interruption)
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function(interruption))
        except BaseException as error:  # the edge of a thread; the caller raises it
            errors.append(error)

    try:
        thread = threading.Thread(target=run, name="hvdlite-apart", daemon=True)
        thread.start()
        end = None
        while thread.is_alive():
            if end is not None:
                raise end
            end = is_vain() if is_vain else None
            thread.join(_LOOK_S)
    except BaseException as error:
        interruption.cause = f"{what} was interrupted by {type(error).__name__}"
        raise
    if errors:
        raise errors[0]
    return results[0]
