"""Notices tensors that some ranks submitted and others did not.

The watch keeps when each waiting name was first seen. It is asked at intervals a fraction of the shortest limit, and
only while something waits, so that it costs nothing in a healthy or idle job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_MAX_NAMES_SHOWN = 6


class StallReport(NamedTuple):
    """A warning to print, or an empty text, and the (rank, name) pairs that have become fatal."""

    warning: str
    fatal: tuple[tuple[int, str], ...]
    waited_s: float


class StallWatch:
    """Warns about a name after each ``warn_s`` that it waits and calls it fatal after ``fatal_s``; 0 means never."""

    def __init__(self, warn_s: float, fatal_s: float) -> None:
        self._warn_s = warn_s
        self._fatal_s = fatal_s
        limits = [limit for limit in (warn_s, fatal_s) if limit > 0]
        self.interval_s = min(limits) / 10 if limits else None
        self._since: dict[str, float] = {}
        self._warned_at: dict[str, float] = {}

    def check(self, waiting: Mapping[str, tuple[int, ...]], now: float) -> StallReport:
        """Looks at the names that wait at ``now``, each with the ranks that did not submit it."""
        self._since = {name: self._since.get(name, now) for name in waiting}
        self._warned_at = {name: at for name, at in self._warned_at.items() if name in waiting}
        due = [
            name
            for name, since in self._since.items()
            if self._warn_s > 0 and now - self._warned_at.get(name, since) >= self._warn_s
        ]
        self._warned_at.update(dict.fromkeys(due, now))
        fatal = [name for name, since in self._since.items() if self._fatal_s > 0 and now - since >= self._fatal_s]
        oldest = max((now - self._since[name] for name in (*due, *fatal)), default=0.0)
        return StallReport(
            _warning(due, waiting, oldest) if due else "",
            tuple((rank, name) for name in fatal for rank in waiting[name]),
            oldest,
        )


def _warning(names: list[str], waiting: Mapping[str, tuple[int, ...]], waited_s: float) -> str:
    names_by_ranks: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        names_by_ranks.setdefault(waiting[name], []).append(name)
    parts = []
    for ranks, missing in names_by_ranks.items():
        shown = ", ".join(missing[:_MAX_NAMES_SHOWN])
        more = f" and {len(missing) - _MAX_NAMES_SHOWN} more" if len(missing) > _MAX_NAMES_SHOWN else ""
        parts.append(f"rank(s) {', '.join(map(str, ranks))} did not submit {shown}{more}")
    return (
        f"waiting for {waited_s:.0f} s: {'; '.join(parts)}. Ranks must submit the same tensors; "
        "look at what those ranks are doing. "
        "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS (--stall-check-shutdown-time-seconds) ends a job that waits for so long."
    )
