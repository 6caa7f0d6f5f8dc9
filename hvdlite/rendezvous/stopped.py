"""Finds ranks of this host that are stopped, by a signal or a debugger.

Ranks have no connection before they meet. But ``/proc`` shows the state of every process, its environment, and whether
it is in ``init`` (`hvdlite.rendezvous.presence`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from hvdlite.host.ancestor import environ_of
from hvdlite.host.proc import pids, stat_of
from hvdlite.rendezvous.presence import job_of, name_of, names_at
from hvdlite.settings import Start

_STATES: Final = ("T", "t")  # by a signal, by a debugger


def stopped_processes() -> dict[int, bytes]:
    """The stopped processes of this machine, each with counters that change when it resumes."""
    found = {}
    for pid in pids():
        with suppress(OSError):  # it has ended
            if stat_of(pid).state in _STATES:
                with open(f"/proc/{pid}/status", "rb") as file:
                    found[pid] = file.read().partition(b"voluntary_ctxt_switches")[2]
    return found


def stopped_ranks(start: Start, stopped: Collection[int]) -> Mapping[int, list[int]]:
    """The ranks of the job of ``start`` with ``stopped`` processes, and the ids of these.

    Returns none if a lower rank waits in ``init``, which reports them too. Leaves out ranks that still run, such as one
    with only a stopped child, and ranks whose stopped process hvdrun started itself, because hvdrun reports them.
    """
    ranks = {name_of(start, rank): rank for rank in range(start.size)}
    found: dict[int, list[int]] = {}
    for pid in stopped:
        if (rank := _rank_of(pid, start, ranks)) is not None:
            found.setdefault(rank, []).append(pid)
    if not found:
        return {}
    present = {ranks[name] for pid in pids() if pid not in stopped for name in names_at(pid) & ranks.keys()}
    if present and min(present) < start.rank:
        return {}
    seen = {rank for rank, pids in found.items() if start.rendezvous and any(_is_top(pid, start) for pid in pids)}
    return {rank: sorted(found[rank]) for rank in sorted(found.keys() - present - seen)}


def _rank_of(pid: int, start: Start, ranks: Mapping[str, int]) -> int | None:
    """The rank that process ``pid`` is marked as, or else was started as."""
    for name in names_at(pid) & ranks.keys():
        return ranks[name]
    return _started_as(pid, start)


def _started_as(pid: int, start: Start) -> int | None:
    with suppress(OSError, ValueError):  # it has ended, belongs to another user, or its variables name no rank
        other = Start.read(environ_of(pid), pid)
        if other.size > 1 and job_of(other) == job_of(start):
            return other.rank
    return None


def _is_top(pid: int, start: Start) -> bool:
    """True if the process was started directly by the engine of this host."""
    with suppress(OSError):
        return _started_as(stat_of(pid).parent, start) is None
    return False
