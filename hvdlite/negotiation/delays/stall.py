"""Detects stalls: tensors that some ranks submitted and other ranks did not.

The watch remembers when it first saw each waiting name. The root checks it ten times within the shorter limit, and only
while a name waits, so that a healthy or idle job pays nothing.

A stall lasts while any name has waited for longer than the limit. It is reported once, and again only if the set of
missing ranks has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from hvdlite.members.ranges import as_ranges, shortened
from hvdlite.negotiation.delays.circle import Wait, circle_of, circle_text

_MAX_NAMES_SHOWN = 6
_MAX_PARTS: Final = 4  # names with the same missing ranks make one part
_MAX_RANGES: Final = 32  # of ranks, in the facts
_MAX_NAME: Final = 100  # characters
_RECENT: Final = 0.2  # share of the limit; a report leaves out names that have waited for less: they may soon be ready


class Unsubmitted(NamedTuple):
    """Tensors that the same ranks did not submit: the ``number`` of them, and some ``names``.

    Ranks are ranges, each the first and the last of them.
    """

    names: Sequence[str]
    number: int
    missing: Sequence[tuple[int, int]]
    present: Sequence[tuple[int, int]]


class Stalled(NamedTuple):
    """The facts of a stall. Each rank of ``circle`` waits for the name beside it, which the next did not submit."""

    seconds: float
    waits: Sequence[Unsubmitted]
    circle: Sequence[tuple[int, str]]


_NONE: Final = Stalled(0.0, (), ())


class StallReport(NamedTuple):
    """The result of a check.

    ``warning`` is a text to show, or empty, with its ``facts``. ``fatal`` has pairs of a missing rank and a name that
    has waited for longer than the fatal limit. ``waited_s`` is the longest wait beyond a limit.
    """

    warning: str
    facts: Stalled
    fatal: tuple[tuple[int, str], ...]
    waited_s: float


class StallWatch:
    """Warns once a name has waited for ``warn_s``, and calls it fatal after ``fatal_s``; 0: never.

    ``interval_s`` is the time between checks, or None if there is no limit.
    """

    def __init__(self, warn_s: float, fatal_s: float) -> None:
        self._warn_s = warn_s
        self._fatal_s = fatal_s
        limits = [limit for limit in (warn_s, fatal_s) if limit > 0]
        self.interval_s = min(limits) / 10 if limits else None
        self._since: dict[str, float] = {}
        self._reported: set[int] = set()  # the ranks that were missing when this stall was reported

    def check(self, waiting: Mapping[str, Wait], now: float) -> StallReport:
        """Checks the names that wait at ``now``, on the monotonic clock."""
        self._since = {name: self._since.get(name, now) for name in waiting}
        due = self._waiting_for(self._warn_s, now) if self._warn_s > 0 else []
        late = self._waiting_for(self._warn_s * _RECENT, now) if due else []
        missing = [{rank for name in names for rank in waiting[name].missing} for names in (due, late)]
        is_news = bool(due) and self._reported not in missing
        if is_news or not due:
            self._reported = missing[1]
        fatal = self._waiting_for(self._fatal_s, now) if self._fatal_s > 0 else []
        oldest = max((now - self._since[name] for name in (*due, *fatal)), default=0.0)
        warning, facts = _report({name: waiting[name] for name in late}, oldest) if is_news else ("", _NONE)
        return StallReport(
            warning, facts, tuple((rank, name) for name in fatal for rank in waiting[name].missing), oldest
        )

    def _waiting_for(self, seconds: float, now: float) -> list[str]:
        return [name for name, since in self._since.items() if now - since >= seconds]


def _report(late: Mapping[str, Wait], waited_s: float) -> tuple[str, Stalled]:
    names_of: dict[Wait, list[str]] = {}
    for name, wait in late.items():
        names_of.setdefault(wait, []).append(name)
    circle = circle_of({wait: names[0][:_MAX_NAME] for wait, names in names_of.items()})
    shown = list(names_of.items())[:_MAX_PARTS]
    parts = [_part(wait, names) for wait, names in shown]
    more = f"; and {len(names_of) - len(parts)} other sets of ranks" if len(names_of) > len(parts) else ""
    advice = "look at what those ranks are doing. " if not circle else f"{circle_text(circle)} "
    warning = (
        f"waiting for {waited_s:.0f} s: {'; '.join(parts)}{more}. Ranks must submit the same tensors; {advice}"
        "HVDLITE_STALL_CHECK_TIME_SECONDS=S reports a wait only after S seconds, and "
        "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS=S ends a job that waits for so long."
    )
    waits = [
        Unsubmitted(
            [name[:_MAX_NAME] for name in names[:_MAX_NAMES_SHOWN]],
            len(names),
            as_ranges(wait.missing)[:_MAX_RANGES],
            as_ranges(wait.present)[:_MAX_RANGES],
        )
        for wait, names in shown
    ]
    return warning, Stalled(waited_s, waits, circle)


def _part(wait: Wait, names: Sequence[str]) -> str:
    shown = ", ".join(name[:_MAX_NAME] for name in names[:_MAX_NAMES_SHOWN])
    more = f" and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    did = f" ({shortened(wait.present)} did)" if wait.present else ""
    return f"rank(s) {shortened(wait.missing)} did not submit {shown}{more}{did}"
