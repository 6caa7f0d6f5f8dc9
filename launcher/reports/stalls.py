"""The report of a stall: which ranks did not submit which tensors, and where their threads are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from hvdlite.blackbox.format import printable
from hvdlite.members.ranges import named
from hvdlite.negotiation.delays.circle import circle_text
from hvdlite.negotiation.delays.stall import Stalled, Unsubmitted

from ..agents.link import AgentLink, Question
from ..stream.fields import checked, each, exactly, integer, number, row
from .stacks import INNERMOST_FIRST, Looked, as_lines, looked
from .survey import Survey

MOST_NAMES: Final = 6
MOST_ASKED: Final = 128  # ranks
_MOST_MISSING: Final = 8
_MOST_RANGES: Final = 64
_MOST_CIRCLE: Final = 32
_MOST_TENSORS: Final = 10**9
_MOST_S: Final = 1e9
_NAME: Final = 100  # characters
_HINTS: Final = (
    "HVDLITE_STALL_CHECK_TIME_SECONDS=S reports a wait only after S seconds",
    "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS=S ends a job that waits for so long",
)
_HINTS_OF_THREADS: Final = ("end such threads before the program, or make them daemons: threading.Thread(daemon=True)",)


@dataclass(frozen=True)
class Missing:
    """Tensors that the same ``ranks`` did not submit. ``count`` is their number, and ``names`` are some of them.

    If the ranks are unresponsive, nothing is known but that no Python of them runs, and that the ranks ``present``
    wait. If they have ended, their program has, and their process waits for threads of these ``names``.
    """

    names: tuple[str, ...]
    count: int
    ranks: tuple[int, ...]
    present: tuple[int, ...]
    are_unresponsive: bool = False
    have_ended: bool = False


@dataclass(frozen=True)
class Stall:
    """A wait. Each rank of ``circle`` waits for the name beside it, which the next rank did not submit."""

    seconds: float
    parts: tuple[Missing, ...]
    circle: tuple[tuple[int, str], ...] = ()

    @property
    def missing(self) -> list[int]:
        """The ranks to look at."""
        return sorted({rank for part in self.parts for rank in part.ranks} | {rank for rank, _ in self.circle})


def name_of(value: object) -> str:
    """A name as it is shown. Raises ValueError if it is none."""
    return printable(exactly(str)(value)[:_NAME])


_seconds, _names, _count = number(0.0, _MOST_S), each(name_of, MOST_NAMES), integer(0, _MOST_TENSORS)


def read_stall(facts: object, size: int) -> Stall | None:
    """Reads the facts of a finding, which come from another machine; None if they are not those of a stall."""
    rank = integer(0, size - 1)
    ranges = each(row(lambda *both: both, (rank, rank)), _MOST_RANGES)
    checks = {
        "seconds": _seconds,
        "waits": each(row(Unsubmitted, (_names, _count, ranges, ranges)), _MOST_MISSING),
        "circle": each(row(lambda *both: both, (rank, name_of)), _MOST_CIRCLE),
    }
    with suppress(ValueError):
        seconds, waits, circle = Stalled(**checked("a stall", checks, facts))
        parts = tuple(map(_missing, waits))
        if parts and all(part.names and part.ranks for part in parts):
            return Stall(seconds, parts, tuple(circle))
    return None


def read_lingering(rank: int, facts: object) -> Stall | None:
    """Reads the facts of a finding that the program of ``rank`` has ended, and its process has not."""
    checks = {"seconds": _seconds, "threads": _names, "count": _count}
    with suppress(ValueError):
        seconds, names, count = checked("an end", checks, facts).values()
        return Stall(seconds, (Missing(names, count, (rank,), (), have_ended=True),))
    return None


def _missing(wait: Unsubmitted) -> Missing:
    missing, present = (
        tuple(sorted({rank for first, last in ranges for rank in range(first, last + 1)}))
        for ranges in (wait.missing, wait.present)
    )
    return Missing(tuple(wait.names), wait.number, missing, present)


class StallReport:
    """The words about ``stall``, which lasts until now. ``link_of`` has the agent of each rank."""

    def __init__(self, stall: Stall, link_of: Mapping[int, AgentLink]) -> None:
        self._stall, self._link_of = stall, link_of
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - stall.seconds))
        parts = "; ".join(self._submitted(part) for part in stall.parts)
        self.headline = f"the job has waited for {stall.seconds:.0f} s, since {since}: {parts}"

    def lines(self, survey: Survey, why_silent: str) -> Iterator[str]:
        """The whole report, with the stacks that the ``survey`` asked for."""
        looks, problems = _looks(survey, why_silent)
        yield f"hvdrun: {self.headline}"
        if self._stall.circle:
            yield f"  {self._circle(looks)}"
        yield from (f"  {line}" for line in as_lines(looks))
        if any(thread.calls for look in looks for thread in look.threads):
            yield f"  {INNERMOST_FIRST}"
        yield from (f"  {problem}" for problem in problems)
        if (more := len(self._stall.missing) - MOST_ASKED) > 0:
            yield f"  and {more} other ranks, which were not asked"
        have_ended = any(part.have_ended for part in self._stall.parts)
        yield from (f"  {hint}" for hint in (_HINTS_OF_THREADS if have_ended else _HINTS))

    def _submitted(self, part: Missing) -> str:
        who, more = self._who(part.ranks), part.count - len(part.names)
        names = ", ".join(map(repr, part.names)) + (f" and {more} more" if more > 0 else "")
        if part.have_ended:
            waits = f"waits for {'thread' if part.count == 1 else 'threads'} {names}" if names else "has not"
            return f"the program of {who} has ended, and its process {waits}"
        if part.are_unresponsive:
            return f"no Python of {who} runs; {named(part.present)} wait for {names}"
        return f"{who} did not submit {names}{f'; {named(part.present)} did' if part.present else ''}"

    def _who(self, ranks: Sequence[int]) -> str:
        """The ranks, with the host and the process if it is one."""
        if len(ranks) > 1:
            return named(ranks)
        link = self._link_of[ranks[0]]
        process = f" (process {link.pids[ranks[0]]})" if ranks[0] in link.pids else ""
        return f"rank {ranks[0]} on {link.host}{process}"

    def _circle(self, looks: Iterable[Looked]) -> str:
        found = {look.rank: look.place for look in looks}
        places = {rank: f"{place.file}:{place.line}, in {place.function}" for rank, place in found.items() if place}
        return circle_text(self._stall.circle, places)


def _looks(survey: Survey, why_silent: str) -> tuple[list[Looked], list[str]]:
    """What the agents saw of the ranks, and what they did not, with the reason."""
    looks, problems = [], []
    for link, ranks, question in survey.asked:
        answer = question.answer if isinstance(question.answer, Mapping) else {}
        known = [rank for rank in ranks if str(rank) in answer]
        looks += [looked(rank, link.host, answer[str(rank)]) for rank in known]
        if silent := [rank for rank in ranks if rank not in known]:
            problems.append(f"{named(silent)} on {link.host}: {_why(question, why_silent)}")
    return sorted(looks, key=lambda look: look.rank), problems


def _why(question: Question, why_silent: str) -> str:
    if not question.is_done:
        return why_silent
    return printable(question.error[:_NAME]) if question.error else "no such rank"
