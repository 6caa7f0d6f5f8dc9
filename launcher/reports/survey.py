"""Surveys: questions to several agents, whose answers are used together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..agents.link import AgentLink, Question
from ..stream.questions import OfRanks


class Survey(NamedTuple):
    """The ranks that each agent was asked about, and the question. ``then`` is called when the survey is over."""

    what: type[OfRanks]
    until: float
    asked: Sequence[tuple[AgentLink, Sequence[int], Question]]
    then: Callable[[Survey, str], None]
    """With the reason why some have not answered. It must look whether they have."""

    def is_over(self, now: float) -> bool:
        """True once all have answered, or are gone, or it is too late."""
        return now >= self.until or all(question.is_done for _, _, question in self.asked)

    def answers(self) -> Iterator[tuple[AgentLink, Any]]:
        """The answers of those that answered."""
        return ((link, asked.answer) for link, _, asked in self.asked if asked.is_done and not asked.error)


class Surveys:
    """Those that are not over. To be called between turns of the loop: `tick`, also at `deadline`."""

    def __init__(self) -> None:
        self._open: list[Survey] = []

    @property
    def deadline(self) -> float | None:
        """When some agent has had its time to answer, on the monotonic clock."""
        return min((survey.until for survey in self._open), default=None)

    def count(self, what: type[OfRanks]) -> int:
        """How many surveys ask ``what`` now."""
        return sum(survey.what is what for survey in self._open)

    def begin(
        self,
        what: type[OfRanks],
        ranks: Mapping[AgentLink, Sequence[int]],
        until: float,
        then: Callable[[Survey, str], None],
        **fields: Any,
    ) -> None:
        """Asks all agents ``what``, with these ``fields``, about their ``ranks``."""
        asked = [(link, those, link.ask(what(tuple(those), **fields))) for link, those in ranks.items()]
        self._open.append(Survey(what, until, asked, then))

    def tick(self, now: float, why_silent: str) -> None:
        """Ends those that are over, and those that these begin, if they are over too."""
        while over := next((survey for survey in self._open if survey.is_over(now)), None):
            self._open.remove(over)
            over.then(over, why_silent)
