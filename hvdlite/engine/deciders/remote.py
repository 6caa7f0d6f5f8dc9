"""The deciders of all other ranks, which exchange messages with the root."""

from __future__ import annotations

from collections.abc import Sequence

from hvdlite.control.link import ControlLink
from hvdlite.engine.deciders.base import Arrived, Decider, Decision, unexpected
from hvdlite.members.membership import Membership
from hvdlite.negotiation.messages import ORDERLY, End, Gathered, News, Ready, Run, Tuning
from hvdlite.negotiation.wire import Message


class RemoteDecider(Decider):
    """Sends the tensors that this rank submitted to the root, and receives the root's decisions."""

    def __init__(self, membership: Membership, link: ControlLink) -> None:
        self._ranks = membership.ranks
        self._link = link
        self._decided: list[Decision] = []

    def receive(self, sender: int, message: Message, now: float) -> None:
        if not isinstance(message, (Run, End)):
            raise unexpected(self._ranks[sender])
        self._decided.append(message)

    def submit(self, ready: Ready, now: float) -> None:
        self._link.send(ready)

    def decisions(self, has_room: bool, now: float) -> Sequence[Decision]:
        if not (decided := self._decided):
            return ()
        self._decided = []
        return decided

    def end(self, end: End) -> None:
        if end.kind not in ORDERLY:
            self._decided.append(end)
        self._link.send(end)  # an orderly end counts when the root sends it back, after the runs that come before it

    def tune(self, tuning: Tuning) -> None:
        raise ValueError(f"only rank {self._ranks[0]} tunes this group")


class LeaderDecider(RemoteDecider):
    """The same on the first rank of a host, which sends the root what all ranks of the host submit.

    The news of a turn are one message. The link passes the root's decisions on to the others.
    """

    def __init__(self, membership: Membership, link: ControlLink) -> None:
        super().__init__(membership, link)
        self._rank, *others = membership.on_this_host
        self._others = frozenset(others)
        self._news: list[News] = []

    def receive(self, sender: int, message: Message, now: float) -> None:
        if sender not in self._others:
            super().receive(sender, message, now)
        elif isinstance(message, Ready):
            self.report(((sender, now),), message)
        elif isinstance(message, End):
            self.end(message)
        else:
            raise unexpected(self._ranks[sender])

    def submit(self, ready: Ready, now: float) -> None:
        self.report(((self._rank, now),), ready)

    def report(self, arrivals: Sequence[Arrived], ready: Ready) -> None:
        """Takes what each rank of ``arrivals`` has submitted. The last of them submitted last."""
        self._news.append(News(tuple(rank for rank, _ in arrivals), ready))

    def decisions(self, has_room: bool, now: float) -> Sequence[Decision]:
        self._send_news()
        return super().decisions(has_room, now)

    def end(self, end: End) -> None:
        self._send_news()
        super().end(end)

    def _send_news(self) -> None:
        if self._news:
            self._link.send(Gathered(tuple(self._news)))
            self._news = []
