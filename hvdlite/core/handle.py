"""The caller's receipt for a submitted tensor."""

from __future__ import annotations

from typing import Any, Protocol

from hvdlite.errors import HvdError


class Waiter(Protocol):
    """What a thread sleeps on, a locked lock for one."""

    def release(self) -> None:
        """Wakes the thread."""


class Handle:
    """State of one submitted collective. Opaque to users: pass it to ``poll`` and ``synchronize``.

    Invariants: ``is_done`` goes from False to True once, after ``output`` or ``error`` is set. ``waiters`` are
    released when it does. ``is_taken`` is set when the result has been handed out.
    """

    __slots__ = ("__weakref__", "error", "is_done", "is_taken", "name", "output", "waiters")

    def __init__(self, name: str) -> None:
        self.name = name
        self.output: Any = None
        self.error: HvdError | None = None
        self.waiters: list[Waiter] | None = None
        self.is_done = False
        self.is_taken = False

    def __repr__(self) -> str:
        state = "done" if self.is_done else "in flight"
        return f"<Handle {self.name!r} {state}>"
