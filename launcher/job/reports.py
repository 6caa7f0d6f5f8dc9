"""Tells the user what ranks found out about the job while it runs (`hvdlite.observe.blackbox.Finding`).

About a rank that is slow it asks the agents of all ranks what happened there, and says the cause (`causes`). About
ranks for which others wait it asks their agents where they are (`stalls`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from hvdlite.observe.blackbox import Finding

from ..agents.fields import count, field, figure, printable
from ..agents.link import AgentLink
from ..screen.screen import Screen
from .causes import Window, explain, windows
from .inquiry import Inquiry
from .mutes import Mutes
from .stalls import Stalls, lingering

_PATIENCE_S: Final = 3.0
_WINDOW_S: Final = (4.0, 15.0)  # of the evidence: at least a few looks of the agents, at most what they keep
_MOST_OPEN: Final = 16
_MOST_CHARACTERS: Final = 600


class _Slow(NamedTuple):
    """A rank that was named, and for which share of the time the others wait for it."""

    rank: int
    share: float
    since_s: float
    said: str

    @staticmethod
    def of(finding: Finding) -> _Slow | None:
        """None if the finding has no facts of such a rank."""
        if finding.kind == "straggler":
            facts = finding.facts
            with suppress(ValueError):
                said = printable(field(facts, "said", str)[:_MOST_CHARACTERS])
                return _Slow(count(facts, "rank"), figure(facts, "share"), figure(facts, "since_s"), said)
        return None


class Reports:
    """Shows findings on ``screen``. ``ranks`` are those of each agent.

    ``latest`` is the text of the last one, which is empty before; ``latest_at`` is its time. ``causes`` has in few
    words why a rank was slow, for those of which it is known. To be called between turns: `tick`, also at `deadline`.
    """

    def __init__(self, screen: Screen, ranks: Mapping[AgentLink, frozenset[int]]) -> None:
        self._screen, self._ranks = screen, ranks
        self._stalls = Stalls(screen.message, {rank: link for link, those in ranks.items() for rank in those})
        self._mutes = Mutes(self._stalls, ranks)
        self._open: list[tuple[_Slow, Inquiry]] = []
        self.latest, self.latest_at = "", 0.0
        self.causes: dict[int, str] = {}

    @property
    def deadline(self) -> float | None:
        """When an agent has had its time to answer, on the monotonic clock."""
        times = [*(inquiry.until for _, inquiry in self._open), self._stalls.deadline, self._mutes.deadline]
        return min((when for when in times if when is not None), default=None)

    def found(self, link: AgentLink, rank: int, finding: Finding) -> None:
        """Rank ``rank``, of the agent ``link``, found something."""
        if (slow := _Slow.of(finding)) is not None and len(self._open) < _MOST_OPEN:
            seconds = min(max(slow.since_s, _WINDOW_S[0]), _WINDOW_S[1])
            until = time.monotonic() + _PATIENCE_S
            self._open.append((slow, Inquiry(self._ranks, until, "evidence", seconds=seconds)))
        elif finding.kind == "mute":
            self._mutes.begin(rank, finding.facts, time.monotonic())
        elif finding.kind == "lingers":
            self._report_lingering(rank, finding.facts, time.monotonic())
        elif finding.kind == "stall" and (headline := self._stalls.begin(finding.facts, time.monotonic())):
            self.latest, self.latest_at = headline, time.monotonic()
        else:
            self._say(finding.text)

    def tick(self, now: float) -> None:
        """Tells of those stalls and slow ranks about which all is known, or as much as there will be."""
        self._mutes.tick(now)
        self._stalls.tick(now)
        over = [each for each in self._open if each[1].is_over(now)]
        self._open = [each for each in self._open if each not in over]
        for slow, inquiry in over:
            self._explain(slow, inquiry)

    def close(self) -> None:
        """Tells the rest."""
        self._stalls.close()
        while self._open:
            self._explain(*self._open.pop(0))

    def _report_lingering(self, rank: int, facts: Mapping[str, Any], now: float) -> None:
        """Reports a rank whose program has ended, unless it was named since, because others wait for it."""
        stall = lingering(rank, facts)
        if stall is None or self._stalls.has_blamed(rank, now - stall.seconds):
            return
        if headline := self._stalls.report(stall, now):
            self.latest, self.latest_at = headline, now

    def _explain(self, slow: _Slow, inquiry: Inquiry) -> None:
        found: dict[int, Window] = {}
        for link, answer in inquiry.answers().items():
            try:
                found |= windows(answer, link.host, self._ranks[link])
            except ValueError as error:
                self._screen.message(f"hvdrun: {link.host}: {error}")
        cause = explain(slow.rank, slow.share, found)
        self.causes.pop(slow.rank, None)
        if cause.short:
            self.causes[slow.rank] = cause.short
        self._say(f"{slow.said}: {cause.text}")

    def _say(self, said: str) -> None:
        self.latest, self.latest_at = said, time.monotonic()
        self._screen.message(f"hvdrun: {said}")
