"""Decides which batches the ranks of a group run, and in which order.

Each rank has a *decider*, and the deciders of all ranks return the same runs in the same order. A turn passes the
messages of other ranks and the tensors that this rank submitted to its decider, and then takes the decisions.

The root decides for all ranks: a `RootDecider` has the negotiator, and a `RemoteDecider` on every other rank exchanges
messages with it. Where ranks share a host, another decider stands before either of them, and agrees in their page on
tensors that all of them know: a `PageDecider` on which of them run if all ranks of the group are there, else a
`HostPageDecider` on which of them are ready on the host.

The root decides as soon as its executor has room for a batch, so tensors accumulate and fuse while bytes are moving.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from hvdlite.negotiation.messages import Common, End, Ready, Run, Tuning
from hvdlite.negotiation.wire import Message, ProtocolError


class Resubmit(NamedTuple):
    """A decision that closes or opens the page: this rank must pass its unanswered bits to ``take`` at once."""

    take: Callable[[Ready, float], None]


Decision: TypeAlias = Run | End | Common | Resubmit

Arrived: TypeAlias = tuple[int, float]
"""A rank, and when it submitted something, on the monotonic clock."""


class Decider(ABC):
    """One rank's part in the decisions of its group. It has no thread and no clock.

    Calls must not overlap; ``now`` is a time of the monotonic clock. Any thread may call `tune` at any time, and read
    ``has_agreed`` and ``due``: the time at which `decisions` must be called even if no message arrives, or None.
    """

    due: float | None = None

    @property
    def has_agreed(self) -> bool:
        """True if `decisions` would return a run when called with ``has_room``."""
        return False

    @abstractmethod
    def receive(self, sender: int, message: Message, now: float) -> None:
        """Takes a message of group index ``sender``. Raises ProtocolError for a message that no correct rank sends."""

    @abstractmethod
    def submit(self, ready: Ready, now: float) -> None:
        """Publishes the tensors that this rank has submitted."""

    @abstractmethod
    def decisions(self, has_room: bool, now: float) -> Iterable[Decision]:
        """Yields the decisions since the last call, in the order that is the same on all ranks.

        Each must be applied before the next one is taken. Without ``has_room`` for another batch, this rank does not
        decide on further tensors.
        """

    def doubt(self) -> None:  # noqa: B027, only the root can look
        """To be called when a turn takes over a call without a name: perhaps other ranks make another call."""

    def lost(self) -> None:  # noqa: B027, most need not know
        """To be called when a rank's connection ends after it has left the group."""

    def arm(self) -> bool:
        """Lets decisions of other ranks wake this rank's inbox, until `decisions` is called. Any thread.

        True if there are some already.
        """
        return False

    @abstractmethod
    def end(self, end: End) -> None:
        """Ends the group on all ranks. An `ORDERLY` end is decided like a run; any other end counts at once.

        GONE counts after all decisions that have been made. May be called again: the first end counts, and later ones
        report which ranks have left.
        """

    @abstractmethod
    def tune(self, tuning: Tuning) -> None:
        """Applies ``tuning`` on all ranks from the next run on. Raises ValueError on any rank but the root."""


def earliest(first: float | None, second: float | None) -> float | None:
    """Returns the earlier of two times, of which each may be None: never."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def unexpected(rank: int) -> ProtocolError:
    """Returns the error for a message that ``rank`` must not send."""
    return ProtocolError(f"rank {rank} sent a message that it must not send")
