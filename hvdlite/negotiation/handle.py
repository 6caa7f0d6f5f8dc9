"""The caller's handle of a submitted tensor."""

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
    """The group in which a handle is in flight."""

    def submit(self, entry: Any) -> Any:
        """Puts ``entry`` in flight, and returns it."""

    def run(self, entry: Any) -> Any:
        """Puts ``entry`` in flight, and returns it when it is done."""

    def wait(self, handle: Any) -> None:
        """Returns when ``handle`` is done."""

    def watch(self, handle: Any, waiter: Waiter) -> bool:
        """Releases ``waiter`` once, in any thread, when ``handle`` is done. False if it was done already."""

    def restart_counters(self) -> None:
        """Restarts all counters of automatic names."""


class Handle(Generic[R]):
    """One submitted collective with a result of type ``R``. Opaque to users: pass it to ``poll`` and ``synchronize``.

    Every handle is an `hvdlite.negotiation.entry.Entry`; this class has the part that the caller uses.

    Invariants: ``is_done`` goes from False to True once, after ``output`` or ``error`` is set. ``is_taken`` is True
    once `synchronize` has returned the result. ``rows`` has the number of rows from each rank, where these may differ.
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
        """True if `synchronize` would not wait."""
        return self.is_done

    if TYPE_CHECKING:

        def result(self, synced: Synced) -> Any:
            """Returns the ``output``. A caller that reads several outputs passes the same ``synced`` for all."""

    def __repr__(self) -> str:
        state = "done" if self.is_done else "in flight"
        return f"<Handle {self.name!r} {state}>"
