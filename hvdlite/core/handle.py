"""The caller's receipt for a submitted tensor."""

from __future__ import annotations

from typing import Any, Protocol

from hvdlite.errors import HvdError


class Waiter(Protocol):
    """What a thread sleeps on, a locked lock for one."""

    def release(self) -> None:
        """Wakes the thread."""


class InFlightIn(Protocol):
    """What a handle is in flight in, a group of ranks."""

    def wait(self, handle: Handle) -> None:
        """Returns when ``handle`` is done."""


class Handle:
    """State of one submitted collective. Opaque to users: pass it to ``poll`` and ``synchronize``.

    Invariants: ``is_done`` goes from False to True once, after ``output`` or ``error`` is set. ``waiters`` are
    released when it does. ``is_taken`` is set when the result has been handed out. ``group`` is where it is in flight.
    ``rows`` are the rows that came from each rank, where they may differ.
    """

    __slots__ = ("__weakref__", "error", "group", "is_done", "is_taken", "name", "output", "rows", "waiters")

    def __init__(self, name: str, group: InFlightIn | None, output: Any = None) -> None:
        self.name = name
        self.group = group
        self.output = output
        self.rows: tuple[int, ...] = ()
        self.error: HvdError | None = None
        self.waiters: list[Waiter] | None = None
        self.is_done = False
        self.is_taken = False

    def __repr__(self) -> str:
        state = "done" if self.is_done else "in flight"
        return f"<Handle {self.name!r} {state}>"
