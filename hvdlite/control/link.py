"""The control links: how the root of a job and every other rank talk about tensors.

A link has one end on each rank. Threads take turns to use it, and may sleep on it. Its frames, see
`hvdlite.negotiation.wire`, contain the session and a count, so the link notices a frame that is lost, repeated or of
another job. Within a host a closed connection means a lost peer; across hosts the peer may resume it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from hvdlite.control.inbox import Inbox
from hvdlite.control.page import Page, PageOffer
from hvdlite.negotiation.wire import Message
from hvdlite.scope import Scope

Received = tuple[int, Message]
"""The rank that sent a message, and the message. A plain tuple, because every turn makes one."""


class Lost(NamedTuple):
    """A lost peer, and the reason."""

    rank: int
    cause: str


class ControlLink(ABC):
    """One rank's end of the control plane. Threads sleep on its ``inbox``."""

    inbox: Inbox
    page: Page | None = None
    """Where the ranks of a host agree on what they all know. The link owns it, and its bell wakes the inbox."""

    @property
    def due(self) -> float | None:
        """The time on the monotonic clock at which `receive` must be called even without messages. Any thread."""
        return None

    @abstractmethod
    def send(self, message: Message) -> None:
        """Sends to the root, or from the root to every rank. Does not block."""

    @abstractmethod
    def receive(self) -> Iterator[Received | Lost]:
        """Yields messages with their sender, and lost peers after their last messages."""

    def flush(self, scope: Scope) -> None:  # noqa: B027, most links have nothing to wait for
        """Waits until what was sent has reached the peers, or ``scope`` is over. Nothing more will be received."""

    @abstractmethod
    def close(self) -> None:
        """Sends what is queued and closes the link, the inbox too."""


class SoloLink(ControlLink):
    """The link of a job of one rank, which has no peers, and a page if there is an ``offer``."""

    def __init__(self, offer: PageOffer | None) -> None:
        self.inbox = Inbox()
        if offer is not None:
            self.page = Page(offer.take(), 0, 1, offer.names)

    def send(self, message: Message) -> None:
        pass

    def receive(self) -> Iterator[Received | Lost]:
        return iter(())

    def close(self) -> None:
        self.inbox.close()
        if self.page is not None:
            self.page.close()
