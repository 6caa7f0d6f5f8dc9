"""Keeps what the kernel and the ranks counted in the last seconds, for the case that a rank turns out to be slow.

So what happened before that is known. A look at a host takes four calls of the kernel, and one at a rank four, and one
for each of its control groups that has limits (`hvdlite.host.counters`).
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvdlite.blackbox import format as blackbox
from hvdlite.blackbox.format import Memory
from hvdlite.host import cgroups
from hvdlite.host.counters import HostCounters, ProcessCounters, Sums, processors_of, steal_of
from hvdlite.host.proc import stat_of
from hvdlite.metrics.table import Reader, by_name, of_ranks, read_by

from ..ranks.workers import Worker

if TYPE_CHECKING:
    from ...stream import questions

_LOOKS: Final = 16  # a second apart
_NO_SUMS: Final = ("is_stopped", "processor")


class _Look(NamedTuple):
    at: float
    host: Sums
    ranks: dict[int, Sums]


class _Watched:
    """A worker and its rank, which may be another process: the worker may be a shell that has started it."""

    def __init__(self, worker: Worker, memory: Memory, root: Path) -> None:
        self.worker, self._memory, self._root = worker, memory, root
        self.pid = worker.process.pid
        self._counters = ProcessCounters(self.pid, root)
        self._looked_at: float | None = None
        self._stopped_s = self._slowed_s = 0.0

    def look(self, host: HostCounters, now: float) -> Sums:
        """The sums by ``now``; empty if there is no such process any more."""
        self._find()
        sums = self._counters.read()
        if not sums:
            return {}
        since_s = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        if (slowness := host.slowness(int(sums["processor"]))) is not None:
            self._slowed_s += slowness * since_s
            sums["slowed_s"] = self._slowed_s
        if self.pid == self.worker.process.pid:  # the kernel reports its stops to its parent
            self._stopped_s = self.worker.stopped_for(now)
        elif sums["is_stopped"]:
            self._stopped_s += since_s
        sums["stopped_s"] = self._stopped_s
        for name in _NO_SUMS:
            del sums[name]
        return sums | by_name({row: blackbox.quantity(self._memory, row) for row in of_ranks() if row.is_counter})

    def _find(self) -> None:
        box = blackbox.look(self._memory)
        if box is None or box.pid == self.pid:
            return
        with suppress(OSError):
            if stat_of(box.pid).session == self.worker.process.pid:
                self._counters.close()
                self.pid, self._counters = box.pid, ProcessCounters(box.pid, self._root)

    def close(self) -> None:
        self._counters.close()


class Evidence:
    """The latest looks at all workers that have a black box. ``root`` is the top of the file system."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._host: HostCounters | None = None
        self._watched: dict[int, _Watched] = {}
        self._looks: deque[_Look] = deque(maxlen=_LOOKS)

    def begin(self, worker: Worker, memory: Memory) -> None:
        """Looks at ``worker`` too, until its `end`."""
        self._host = self._host or HostCounters(self._root)
        self._watched[worker.rank] = _Watched(worker, memory, self._root)

    def end(self, rank: int) -> None:
        """Looks no more at the worker of ``rank``."""
        if watched := self._watched.pop(rank, None):
            watched.close()
        if self._host is not None and not self._watched:
            self._host.close()
            self._host = None

    def look(self, now: float) -> None:
        """Looks at ``now``, on the monotonic clock."""
        if self._host is not None and self._watched:
            ranks = {rank: watched.look(self._host, now) for rank, watched in self._watched.items()}
            self._looks.append(_Look(now, self._host.read(), ranks))

    def answer(self, question: questions.Evidence) -> list[dict[str, Any]]:
        """What the sums grew by, in the time that was asked for or as long as is known. For any thread."""
        looks = list(self._looks)
        if len(looks) < 2:
            return []
        last = looks[-1]
        first = next(look for look in looks if look is looks[-2] or last.at - look.at <= question.seconds)
        found = []
        for rank in question.ranks:
            watched, before, after = self._watched.get(rank), first.ranks.get(rank), last.ranks.get(rank)
            if watched and before and after:
                grown = {name: after[name] - before[name] for name in after.keys() & before.keys()}
                row = {"rank": rank, "over_s": last.at - first.at, "sums": grown}
                found.append(row | _of_host(watched.pid, self._root, grown, first.host, last.host))
        return found


def _of_host(pid: int, root: Path, grown: Sums, before: Sums, after: Sums) -> dict[str, Any]:
    """The limits of process ``pid``; and its part of what its host counted, which is added to what has ``grown``."""
    names = [row.name for row in read_by(Reader.HOST)]
    grown |= {name: after[name] - before[name] for name in names if name in after and name in before}
    processors = processors_of(pid)
    stolen = steal_of(before, processors), steal_of(after, processors)
    if stolen[0] is not None and stolen[1] is not None:
        grown["steal_s"] = stolen[1] - stolen[0]
    top, own = root / "sys" / "fs" / "cgroup", root / "proc" / str(pid) / "cgroup"
    return {"cores": cgroups.cores_limit(top, own), "memory": cgroups.memory_limit(top, own)}
