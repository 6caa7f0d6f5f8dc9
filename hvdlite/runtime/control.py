"""The control links: how the root of a job and every other rank talk about tensors.

A link has one end on each rank, used by its coordinator's thread. Its frames are `hvdlite.core.wire`'s, which carry the
session and a count, so a frame that is lost, repeated or of another job is noticed. A link is never resumed: a
connection that is gone is a peer that is gone.
"""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from hvdlite.core.wire import Message
from hvdlite.runtime.wake import Wake


class Lost(NamedTuple):
    """A peer that can no longer be reached, and how that was noticed."""

    rank: int
    cause: str


class ControlLink(ABC):
    """One rank's end of the control plane."""

    wake: Wake

    @abstractmethod
    def send(self, message: Message) -> None:
        """To the root, or from the root to every rank. Does not block."""

    @abstractmethod
    def receive(self, timeout_ms: int | None, is_waiting: bool) -> Iterator[tuple[int, Message] | Lost]:
        """Sleeps until something comes, `wake` is set, or the time is over; gives messages with their sender, and peers
        that were lost. A peer's last messages come before its loss.

        ``is_waiting`` says that this rank needs its peers to be alive, so one that is stopped must be noticed.
        """

    @abstractmethod
    def close(self) -> None:
        """Sends what is queued and closes the link, the wake too."""


class SoloLink(ControlLink):
    """The link of a job of one rank: nobody to talk to."""

    def __init__(self) -> None:
        self.wake = Wake()
        self._poll = select.poll()
        self._poll.register(self.wake.fd, select.POLLIN)

    def send(self, message: Message) -> None:
        pass

    def receive(self, timeout_ms: int | None, is_waiting: bool) -> Iterator[tuple[int, Message] | Lost]:
        if self._poll.poll(timeout_ms):
            self.wake.clear()
        return iter(())

    def close(self) -> None:
        self.wake.close()
