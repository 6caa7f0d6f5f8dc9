"""Which thread makes the calls that have no name from the user.

Ranks match such calls by their order. Two threads have no order that all ranks share, so each rank would pair their
calls differently, and silently compute other numbers. All calls of one counter therefore belong to one thread, until it
ends.

Threads of frameworks are exempt, because the framework orders what they run: those that Python did not start, such as
autograd's and TensorFlow's, and those that TensorFlow starts in Python. So are hvdlite's own, which act for a caller.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from hvdlite.negotiation.kinds import KINDS
from hvdlite.negotiation.messages import Kind

Counter = tuple[Any, ...]
"""A kind of collective, with the ranks or the part of a call that are counted separately."""

_EXEMPT_NAMES: Final = "hvdlite-"
_EXEMPT_MODULES: Final = "tensorflow."


class Callers(dict[Counter, threading.Thread]):
    """The thread of each counter on rank ``rank``.

    Before each call its thread compares itself, `HERE`, with the one that is found here, which costs next to nothing.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank
        self._lock = threading.RLock()  # reentrant, because a signal handler may call a collective

    def admit(self, counter: Counter) -> None:
        """Gives ``counter`` to this thread. Raises ValueError if it is another's that has not ended."""
        thread = HERE.thread
        if thread is None:
            return
        with self._lock:
            owner = self.get(counter)
            if owner is not None and owner is not thread and owner.is_alive():
                raise ValueError(_refusal(counter[0], thread, owner, self._rank))
            self[counter] = thread


def _is_exempt(thread: threading.Thread) -> bool:
    return (
        isinstance(thread, threading._DummyThread)
        or thread.name.startswith(_EXEMPT_NAMES)
        or type(thread).__module__.startswith(_EXEMPT_MODULES)
    )


class _Here(threading.local):
    """``thread`` is the thread that looks; None if it is exempt."""

    thread: threading.Thread | None

    def __init__(self) -> None:  # in each thread, when it first looks
        # `threading.current_thread` would leave an object behind for a thread that Python did not start.
        ident = threading.get_ident()
        found = next((thread for thread in threading.enumerate() if thread.ident == ident), None)
        self.thread = None if found is None or _is_exempt(found) else found


HERE: Final = _Here()


def _refusal(kind: Kind, thread: threading.Thread, owner: threading.Thread, rank: int) -> str:
    row = KINDS[kind]
    what = "send or recv" if row.has_peer else str(kind)
    if row.has_tensor:
        advice = "Give these calls names that are the same on all ranks, name='...', or make them in one thread"
    else:
        advice = f"A {kind} takes no name: call it in one thread, or in a process set for each thread"
    return (
        f"thread {thread.name!r} of rank {rank} calls {what} without a name, as thread {owner.name!r} has done: ranks "
        f"match such calls by their order, and two threads have none. {advice}"
    )
