"""Restricts calls without a name to one thread.

Ranks match such calls by their order. The order of calls in two threads differs from rank to rank, so ranks would pair
different tensors, and silently compute wrong results. All calls of one counter therefore belong to one thread, until
the thread ends.

Threads of frameworks are exempt, because the framework orders their calls: threads that Python did not start, such as
autograd's and TensorFlow's, and threads that TensorFlow starts in Python. hvdlite's own threads act for a caller, and
are exempt too.
"""

from __future__ import annotations

import threading
from typing import Final

from hvdlite.negotiation.kinds import KINDS
from hvdlite.negotiation.messages import Kind
from hvdlite.negotiation.unnamed import Counter

_EXEMPT_NAMES: Final = "hvdlite-"
_EXEMPT_MODULES: Final = "tensorflow."


class Callers(dict[Counter, threading.Thread]):
    """The thread that owns each counter, on rank ``rank``.

    The caller compares the owner with ``HERE.thread`` before each call, which is cheap, and calls `admit` if they
    differ.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank
        self._lock = threading.RLock()  # reentrant, because a signal handler may call a collective

    def admit(self, counter: Counter) -> None:
        """Gives ``counter`` to this thread. Raises ValueError if another live thread owns it."""
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
    """``thread`` is the current thread, or None if it is exempt."""

    thread: threading.Thread | None

    def __init__(self) -> None:  # runs once in each thread
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
        f"thread {thread.name!r} of rank {rank} calls {what} without a name, and so did thread {owner.name!r}: ranks "
        f"match such calls by their order, which differs between ranks if two threads call. {advice}"
    )
