"""Reports stopped ranks of this host, by a signal or a debugger, while others wait for them in ``init``.

In a session ranks watch each other, and hvdrun notices if a process that it has started is stopped. In ``init`` nothing
else notices it of a rank below a shell or another wrapper, or in a job of torchrun, mpirun or srun. Ranks have no
connection before they meet. But ``/proc`` shows the state of every process, its environment, and whether it is in
``init`` (`hvdlite.rendezvous.presence`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from hvdlite.host.ancestor import environ_of
from hvdlite.host.proc import pids, stat_of
from hvdlite.log import logger
from hvdlite.rendezvous.presence import Presence, job_of, name_of, names_at
from hvdlite.settings import Start

_LOOK_S: Final = 1.5  # two looks in a row must find a rank stopped, so it is reported after 3 s at most
_AGAIN_S: Final = 60.0
_STATES: Final = ("T", "t")  # by a signal, by a debugger


@contextmanager
def looking_out(start: Start, presence: Presence) -> Iterator[None]:
    """A context in which a thread reports stopped ranks, and again every minute.

    The thread also ends with ``presence``, because an exception of a signal handler may skip the end of the context.
    """
    if start.size == 1:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_look, args=(start, presence, done), name="hvdlite-lookout", daemon=True)
    try:
        thread.start()
        yield
    finally:
        done.set()
        if thread.ident is not None:
            thread.join()


def _look(start: Start, presence: Presence, done: threading.Event) -> None:
    reported: dict[int, float] = {}  # when, by rank
    before: dict[int, bytes] = {}
    while not done.wait(_LOOK_S) and not presence.is_over:
        now = time.monotonic()
        stopped = stopped_processes()
        lasting = {pid for pid, counters in stopped.items() if before.get(pid) == counters}
        before = stopped
        ranks = stopped_ranks(start, lasting) if lasting else {}
        reported = {rank: when for rank, when in reported.items() if rank in ranks}
        for rank, stopped_pids in ranks.items():
            if now - reported.get(rank, -_AGAIN_S) >= _AGAIN_S and not done.is_set():
                reported[rank] = now
                logger.warning(
                    "rank %d, process %s, is stopped (SIGSTOP, a debugger); ranks that wait for it in init() wait "
                    "until it continues (SIGCONT)",
                    rank,
                    ", ".join(map(str, stopped_pids)),
                )


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
    seen = {rank for rank, own in found.items() if start.rendezvous and any(_is_top(pid, start) for pid in own)}
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
