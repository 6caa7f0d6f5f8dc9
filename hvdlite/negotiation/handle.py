"""The caller's receipt for a submitted tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol

from hvdlite.errors import DuplicateName, HvdError
from hvdlite.tensors.streams import Synced

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    R = TypeVar("R", default=Any)  # covariant, so that a handle of any result is a Handle
else:
    from typing import TypeVar

    R = TypeVar("R")


class Waiter(Protocol):
    """Something a thread can sleep on, such as a locked lock."""

    def release(self) -> None:
        """Wakes the thread."""


class InFlightIn(Protocol):
    """The group of ranks in which a handle is in flight."""

    def submit(self, entry: Any) -> Any:
        """Puts ``entry`` in flight, and returns it."""

    def run(self, entry: Any) -> Any:
        """Puts ``entry`` in flight, and returns it when it is done."""

    def wait(self, handle: Any) -> None:
        """Returns when ``handle`` is done."""

    def watch(self, handle: Any, waiter: Waiter) -> bool:
        """Releases ``waiter`` once, in any thread: now if ``handle`` is done, else when it is. False if it was done."""

    def restart_counters(self) -> None:
        """Restarts all counters of automatic names."""


class Handle(Generic[R]):
    """State of one submitted collective. Opaque to users: pass it to ``poll`` and ``synchronize``.

    Every handle is an `hvdlite.negotiation.entry.Entry`, which makes it; this is what its caller knows of it.

    Invariants: ``is_done`` goes from False to True once, after ``output`` or ``error`` is set. ``is_taken`` is set when
    the result has been handed out. ``group`` is where it is in flight. ``rows`` are the rows that came from each rank,
    where they may differ. The result is an ``R``.
    """

    __slots__ = ("__weakref__", "error", "group", "is_done", "is_taken", "name", "output", "rows")

    name: str
    group: InFlightIn | None
    output: Any
    rows: tuple[int, ...]
    error: HvdError | DuplicateName | None
    is_done: bool
    is_taken: bool

    @property
    def has_result(self) -> bool:
        """True if nobody has to wait for the result, or error, any more."""
        return self.is_done

    if TYPE_CHECKING:

        def result(self, synced: Synced) -> Any:
            """Returns the ``output``. A caller that reads several outputs passes the same ``synced`` for all."""

    def __repr__(self) -> str:
        state = "done" if self.is_done else "in flight"
        return f"<Handle {self.name!r} {state}>"
