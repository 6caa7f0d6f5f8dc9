"""Reports to the user what ranks found out about the job while it runs (`hvdlite.blackbox.format.Finding`).

Most findings are explained first, by a survey of agents:

- A rank is slow: all agents are asked what happened there, and the cause is reported (`causes`).
- The job stalls, because ranks did not submit tensors: their agents are asked for the stacks of threads (`stalls`).
- A rank is unresponsive, as no Python of it runs: all agents are asked who waits. If some ranks do, and no other report
  has named the rank, it is the reason of a stall.
- A program has ended, and its process has not: its agent is asked for stacks, unless another report has named the rank.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

from hvdlite.blackbox.format import Finding

from ..agents.answers import Rank, Status
from ..agents.link import AgentLink
from ..screen.screen import Screen
from ..stream import questions
from ..stream.fields import Figure, line, listed, read
from .causes import Window, explain, windows
from .stalls import MOST_ASKED, Missing, Stall, StallReport, name_of, read_lingering, read_stall
from .survey import Survey, Surveys

_CAUSE_S: Final = 3.0  # for an agent to answer
_STATUS_S: Final = 3.0
_STACKS_S: Final = 8.0
_WINDOW_S: Final = (4.0, 15.0)  # of the evidence: at least a few looks of the agents, at most what they keep
_MOST_OPEN: Final = {questions.Evidence: 16, questions.Status: 8, questions.Stacks: 8}  # surveys
_MOST_NAMES: Final = 2  # for which a rank waits
_MOST_CHARACTERS: Final = 600
_NO_ANSWER: Final = f"no answer within {_STACKS_S:.0f} s"
_TOO_EARLY: Final = "the job ended before there was an answer"


class _Slow(NamedTuple):
    """A rank that was named, and for which share of the time the others wait for it."""

    rank: Rank
    share: Figure
    since_s: Figure
    said: Annotated[str, line(_MOST_CHARACTERS)]


class _Unresponsive(NamedTuple):
    """For how long no Python of a rank has run, and after how long that is reported."""

    seconds: Figure
    patience_s: Figure


class Reports:
    """Shows findings on ``screen``. ``ranks`` are those of each agent.

    ``latest`` is the text of the last one, which is empty before; ``latest_at`` is its time. ``causes`` has in few
    words why a rank was slow, for those of which it is known. To be called between turns: `tick`, also at `deadline`.
    """

    def __init__(self, screen: Screen, ranks: Mapping[AgentLink, frozenset[int]]) -> None:
        self._screen, self._ranks = screen, {link: sorted(those) for link, those in ranks.items()}
        self._link_of = {rank: link for link, those in ranks.items() for rank in those}
        self._surveys = Surveys()
        self._named_at: dict[int, float] = {}  # when a report last named each rank, on the monotonic clock
        self.latest, self.latest_at = "", 0.0
        self.causes: dict[int, str] = {}

    @property
    def deadline(self) -> float | None:
        """When an agent has had its time to answer, on the monotonic clock."""
        return self._surveys.deadline

    def found(self, link: AgentLink, rank: int, finding: Finding) -> None:
        """Rank ``rank``, of the agent ``link``, found something."""
        now = time.monotonic()
        if finding.kind == "unresponsive":
            self._find_waiting(rank, finding.facts, now)
        elif finding.kind == "lingers":
            if (stall := read_lingering(rank, finding.facts)) and not self._has_named(rank, now - stall.seconds):
                self._report(stall, now)
        elif finding.kind == "straggler" and (slow := _slow(finding.facts)) and self._may_ask(questions.Evidence):
            seconds = min(max(slow.since_s, _WINDOW_S[0]), _WINDOW_S[1])
            then = partial(self._explain, slow)
            self._surveys.begin(questions.Evidence, self._ranks, now + _CAUSE_S, then, seconds=seconds)
        elif not (
            finding.kind == "stall"
            and (stall := read_stall(finding.facts, len(self._link_of)))
            and self._report(stall, now)
        ):
            self._show(finding.text)

    def tick(self, now: float) -> None:
        """Reports those findings about which all is known, or as much as there will be."""
        self._surveys.tick(now, _NO_ANSWER)

    def close(self) -> None:
        """Reports the rest."""
        self._surveys.tick(math.inf, _TOO_EARLY)

    def _may_ask(self, what: type[questions.OfRanks]) -> bool:
        return self._surveys.count(what) < _MOST_OPEN[what]

    def _has_named(self, rank: int, since: float) -> bool:
        return self._named_at.get(rank, 0.0) >= since

    def _report(self, stall: Stall, now: float) -> bool:
        """Begins a report, which is shown when the stacks are there. False if there are too many."""
        if not self._may_ask(questions.Stacks):
            return False
        self._named_at |= dict.fromkeys(stall.missing, now)
        report, ranks = StallReport(stall, self._link_of), dict[AgentLink, list[int]]()
        for rank in stall.missing[:MOST_ASKED]:
            ranks.setdefault(self._link_of[rank], []).append(rank)

        def show(survey: Survey, why_silent: str) -> None:
            self._screen.message(*report.lines(survey, why_silent))

        self._surveys.begin(questions.Stacks, ranks, now + _STACKS_S, show, all=False)
        self.latest, self.latest_at = report.headline, now
        return True

    def _find_waiting(self, rank: int, facts: Mapping[str, Any], now: float) -> None:
        """Asks who waits for a rank that is unresponsive. The ``facts`` come from another machine."""
        try:
            seconds, patience_s = read(_Unresponsive, facts)
        except ValueError:
            return
        if 0 < patience_s <= seconds and self._may_ask(questions.Status) and not self._has_named(rank, now - seconds):
            then = partial(self._report_unresponsive, rank, seconds, patience_s)
            self._surveys.begin(questions.Status, self._ranks, now + _STATUS_S, then)

    def _report_unresponsive(self, rank: int, seconds: float, patience_s: float, survey: Survey, why: str) -> None:
        waits: dict[int, list[str]] = {}
        for link, answer in survey.answers():
            waits |= {other: names for other, names in _waits(answer, patience_s) if self._link_of.get(other) is link}
        waits.pop(rank, None)
        now = time.monotonic()
        if waits and why != _TOO_EARLY and not self._has_named(rank, now - seconds):
            names = tuple(dict.fromkeys(name for each in waits.values() for name in each))[:_MOST_NAMES]
            part = Missing(names, len(names), (rank,), tuple(sorted(waits)), are_unresponsive=True)
            self._report(Stall(seconds, (part,)), now)

    def _explain(self, slow: _Slow, survey: Survey, _: str) -> None:
        found: dict[int, Window] = {}
        for link, answer in survey.answers():
            try:
                found |= windows(answer, link.host, frozenset(self._ranks[link]))
            except ValueError as error:
                self._screen.message(f"hvdrun: {link.host}: {error}")
        cause = explain(slow.rank, slow.share, found)
        self.causes.pop(slow.rank, None)
        if cause.short:
            self.causes[slow.rank] = cause.short
        self._show(f"{slow.said}: {cause.text}")

    def _show(self, text: str) -> None:
        self.latest, self.latest_at = text, time.monotonic()
        self._screen.message(f"hvdrun: {text}")


def _slow(facts: Mapping[str, Any]) -> _Slow | None:
    """None if a finding has no facts of a slow rank."""
    with suppress(ValueError):
        return read(_Slow, facts)
    return None


def _waits(answer: object, at_least_s: float) -> Iterator[tuple[int, list[str]]]:
    """The ranks that have waited for so long, and for which names, of what their agent answered."""
    for each in listed(answer):
        with suppress(ValueError):
            status = read(Status, each)
            if status.waiting_s >= at_least_s:
                yield status.rank, [name_of(name) for name in status.names[:_MOST_NAMES]]
