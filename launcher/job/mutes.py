"""Reports of ranks whose Python does not run while others wait, and which no other report has named.

Their agents tell of them (`launcher.agent.looking.mute`). Then all agents are asked who waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ..agents.fields import printable
from ..agents.link import AgentLink, Question
from .stalls import Missing, Stall, Stalls

_ANSWER_S: Final = 3.0
_MOST_OPEN: Final = 8
_MOST_NAMES: Final = 2
_NAME: Final = 100  # characters


class _Asked(NamedTuple):
    rank: int
    seconds: float
    patience_s: float
    until: float
    questions: list[tuple[frozenset[int], Question]]


class Mutes:
    """Hands what is to be reported to ``stalls``. ``ranks`` are those of each agent."""

    def __init__(self, stalls: Stalls, ranks: Mapping[AgentLink, frozenset[int]]) -> None:
        self._stalls, self._ranks = stalls, ranks
        self._open: list[_Asked] = []

    @property
    def deadline(self) -> float | None:
        """The time of the next `tick`."""
        return min((asked.until for asked in self._open), default=None)

    def begin(self, rank: int, facts: Mapping[str, Any], now: float) -> None:
        """The Python of ``rank`` does not run. ``facts`` come from another machine."""
        seconds, patience_s = facts.get("seconds"), facts.get("patience_s")
        if type(seconds) is not float or type(patience_s) is not float or not 0 < patience_s <= seconds < math.inf:
            return
        if len(self._open) < _MOST_OPEN and not self._stalls.has_blamed(rank, now - seconds):
            questions = [(ranks, link.ask("status", ranks=sorted(ranks))) for link, ranks in self._ranks.items()]
            self._open.append(_Asked(rank, seconds, patience_s, now + _ANSWER_S, questions))

    def tick(self, now: float) -> None:
        """Begins the reports of those for whom others wait."""
        over = [
            each for each in self._open if now >= each.until or all(question.is_done for _, question in each.questions)
        ]
        self._open = [each for each in self._open if each not in over]
        for each in over:
            waits: dict[int, list[str]] = {}
            for ranks, question in each.questions:
                waits |= _waits(question.answer, ranks, each.patience_s)
            waits.pop(each.rank, None)
            if waits and not self._stalls.has_blamed(each.rank, now - each.seconds):
                names = tuple(dict.fromkeys(name for those in waits.values() for name in those))[:_MOST_NAMES]
                part = Missing(names, len(names), (each.rank,), tuple(sorted(waits)), is_mute=True)
                self._stalls.report(Stall(each.seconds, (part,), ()), now)


def _waits(answer: object, ranks: frozenset[int], at_least_s: float) -> dict[int, list[str]]:
    """The names for which ranks have waited for so long, of what their agent answered."""
    found: dict[int, list[str]] = {}
    for status in answer if isinstance(answer, list) else ():
        fields = status if isinstance(status, Mapping) else {}
        rank, waited_s, names = fields.get("rank"), fields.get("waiting_s"), fields.get("names")
        if type(rank) is int and rank in ranks and type(waited_s) is float and waited_s >= at_least_s:
            listed = names[:_MOST_NAMES] if isinstance(names, list) else []
            found[rank] = [printable(name[:_NAME]) for name in listed if isinstance(name, str)]
    return found
