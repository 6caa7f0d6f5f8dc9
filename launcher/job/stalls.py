"""Reports of stalls: which ranks did not submit which tensors, and where their threads are.

Rank 0 finds the stall. The agents of the missing ranks are asked for the stacks, and one report is shown when all have
answered, or after `_ANSWER_S`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hvdlite.members.ranges import named
from hvdlite.negotiation.delays.circle import circle_text

from ..agents.fields import printable
from ..agents.link import AgentLink, Question
from ..screen.stacks import INNERMOST_FIRST, Looked, as_lines, looked

_ANSWER_S: Final = 8.0
_MOST_ASKED: Final = 128  # ranks
_MOST_OPEN: Final = 8
_MOST_PARTS: Final = 8
_MOST_NAMES: Final = 6
_MOST_RANGES: Final = 64
_MOST_CIRCLE: Final = 8
_MOST_TENSORS: Final = 10**9
_NAME: Final = 100  # characters
_HINT: Final = "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS=S ends a job that waits for so long"
_HINT_OF_THREADS: Final = "end such threads before the program, or make them daemons: threading.Thread(daemon=True)"


@dataclass(frozen=True)
class Missing:
    """Tensors that the same ranks did not submit. ``count`` is the number of those of which ``names`` are some.

    If ``is_mute``, all that is known is that no Python of the missing rank runs, and that those of ``present`` wait. If
    it ``has_ended``, its program has, and its process waits for the threads of these ``names``.
    """

    names: tuple[str, ...]
    count: int
    missing: tuple[int, ...]
    present: tuple[int, ...]
    is_mute: bool = False
    has_ended: bool = False


@dataclass(frozen=True)
class Stall:
    """What rank 0 found. Each rank of ``circle`` waits for the name beside it, which the next one did not submit."""

    seconds: float
    parts: tuple[Missing, ...]
    circle: tuple[tuple[int, str], ...]

    @property
    def missing(self) -> list[int]:
        """The ranks to look at."""
        return sorted({rank for part in self.parts for rank in part.missing} | {rank for rank, _ in self.circle})


def read(facts: Mapping[str, Any], size: int) -> Stall | None:
    """Reads the facts of a finding, which come from another machine; None if they are not those of a stall."""
    try:
        parts = tuple(_part(each, size) for each in facts["waits"][:_MOST_PARTS])
        circle = tuple((_rank(rank, size), _name(name)) for rank, name in facts["circle"][:_MOST_CIRCLE])
        seconds = float(facts["seconds"])
    except (KeyError, OverflowError, TypeError, ValueError):
        return None
    return Stall(seconds, parts, circle) if parts and 0 <= seconds < 1e9 else None


def lingering(rank: int, facts: Mapping[str, Any]) -> Stall | None:
    """Reads the facts of a finding that the program of ``rank`` has ended, and its process has not."""
    try:
        names = tuple(_name(name) for name in facts["threads"][:_MOST_NAMES])
        part = Missing(names, min(int(facts["count"]), _MOST_TENSORS), (rank,), (), has_ended=True)
        seconds = float(facts["seconds"])
    except (KeyError, OverflowError, TypeError, ValueError):
        return None
    return Stall(seconds, (part,), ()) if 0 <= seconds < 1e9 else None


def _part(fields: Mapping[str, Any], size: int) -> Missing:
    names = tuple(_name(name) for name in fields["names"][:_MOST_NAMES])
    missing, present = (_ranks(fields[name], size) for name in ("missing", "present"))
    if not names or not missing:
        raise ValueError
    return Missing(names, min(int(fields["count"]), _MOST_TENSORS), missing, present)


def _ranks(ranges: Sequence[Any], size: int) -> tuple[int, ...]:
    pairs = [(_rank(first, size), _rank(last, size)) for first, last in ranges[:_MOST_RANGES]]
    return tuple(sorted({rank for first, last in pairs for rank in range(first, last + 1)}))


def _rank(value: object, size: int) -> int:
    if type(value) is not int or not 0 <= value < size:
        raise ValueError
    return value


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return printable(value[:_NAME])


class StallReport:
    """One report in the making."""

    def __init__(self, stall: Stall, link_of: Mapping[int, AgentLink], now: float) -> None:
        self._stall, self._link_of = stall, link_of
        self._began = time.time() - stall.seconds
        self.deadline = now + _ANSWER_S
        ranks_of: dict[AgentLink, list[int]] = {}
        for rank in stall.missing[:_MOST_ASKED]:
            ranks_of.setdefault(link_of[rank], []).append(rank)
        self._asked = [(link, ranks, link.ask("stacks", ranks=ranks, more={})) for link, ranks in ranks_of.items()]

    def is_due(self, now: float) -> bool:
        """True if all have answered, or their time is over."""
        return now >= self.deadline or all(question.is_done for _, _, question in self._asked)

    @property
    def headline(self) -> str:
        """The stall in one sentence."""
        since = time.strftime("%H:%M:%S", time.localtime(self._began))
        parts = "; ".join(self._submitted(part) for part in self._stall.parts)
        return f"the job has waited for {self._stall.seconds:.0f} s, since {since}: {parts}"

    def lines(self, no_answer: str) -> Iterator[str]:
        """The whole report, with ``no_answer`` for ranks whose agent has not answered."""
        looks, problems = self._looks(no_answer)
        yield f"hvdrun: {self.headline}"
        if self._stall.circle:
            yield f"  {self._circle(looks)}"
        yield from (f"  {line}" for line in as_lines(looks))
        if any(thread.calls for look in looks for thread in look.threads):
            yield f"  {INNERMOST_FIRST}"
        yield from (f"  {problem}" for problem in problems)
        if (more := len(self._stall.missing) - _MOST_ASKED) > 0:
            yield f"  and {more} other ranks, which were not asked"
        yield f"  {_HINT_OF_THREADS if any(part.has_ended for part in self._stall.parts) else _HINT}"

    def _looks(self, no_answer: str) -> tuple[list[Looked], list[str]]:
        looks, problems = [], []
        for link, ranks, question in self._asked:
            answer = question.answer if isinstance(question.answer, Mapping) else {}
            known = [rank for rank in ranks if str(rank) in answer]
            looks += [looked(rank, link.host, answer[str(rank)]) for rank in known]
            if silent := [rank for rank in ranks if rank not in known]:
                problems.append(f"{named(silent)} on {link.host}: {_why_silent(question, no_answer)}")
        return sorted(looks, key=lambda look: look.rank), problems

    def _submitted(self, part: Missing) -> str:
        names = ", ".join(map(repr, part.names)) + (
            f" and {part.count - len(part.names)} more" if part.count > len(part.names) else ""
        )
        if part.has_ended:
            waits = f"waits for {'thread' if part.count == 1 else 'threads'} {names}" if names else "has not"
            return f"the program of {self._who(part.missing)} has ended, and its process {waits}"
        if part.is_mute:
            return f"no Python of {self._who(part.missing)} runs; {named(part.present)} wait for {names}"
        did = f"; {named(part.present)} did" if part.present else ""
        return f"{self._who(part.missing)} did not submit {names}{did}"

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


def _why_silent(question: Question, no_answer: str) -> str:
    if not question.is_done:
        return no_answer
    return printable(question.error[:_NAME]) if question.error else "no such rank"


class Stalls:
    """Makes reports and shows them with ``show``; ``link_of`` has the agent of each rank."""

    def __init__(self, show: Callable[..., None], link_of: Mapping[int, AgentLink]) -> None:
        self._show, self._link_of = show, link_of
        self._open: list[StallReport] = []
        self._blamed: dict[int, float] = {}  # when a report last named each rank, on the monotonic clock

    @property
    def deadline(self) -> float | None:
        """The time of the next `tick`."""
        return min((report.deadline for report in self._open), default=None)

    def begin(self, facts: Mapping[str, Any], now: float) -> str:
        """Begins a report, and returns its headline; it is empty if the facts are not those of a stall, or too many."""
        stall = read(facts, len(self._link_of))
        return "" if stall is None else self.report(stall, now)

    def report(self, stall: Stall, now: float) -> str:
        """Begins a report, and returns its headline; it is empty if there are too many."""
        if len(self._open) >= _MOST_OPEN:
            return ""
        self._blamed |= dict.fromkeys(stall.missing, now)
        self._open.append(StallReport(stall, self._link_of, now))
        return self._open[-1].headline

    def has_blamed(self, rank: int, since: float) -> bool:
        """True if a report has named ``rank`` since then."""
        return self._blamed.get(rank, 0.0) >= since

    def tick(self, now: float) -> None:
        """Shows what is complete."""
        due = [report for report in self._open if report.is_due(now)]
        self._open = [report for report in self._open if report not in due]
        for report in due:
            self._show(*report.lines(f"no answer within {_ANSWER_S:.0f} s"))

    def close(self) -> None:
        """Shows what there is, for the job has ended."""
        while self._open:
            self._show(*self._open.pop(0).lines("the job ended before there was an answer"))
