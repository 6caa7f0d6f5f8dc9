"""Refuses to start a rank whose parent process already holds that rank.

A child inherits its parent's environment, and with it the rank: for example, a spawned data-loader worker that imports
a script which calls ``init`` at the top. A process in ``init`` or in a session has a descriptor whose name other
processes of the same user can read in ``/proc``. It is closed with the session. So a parent that has left does not
count, nor do processes in between (shells, debuggers, launchers).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Final

from hvdlite.errors import HorovodInternalError
from hvdlite.host.proc import stat_of
from hvdlite.settings import Start

_MEMFD: Final = "/memfd:"


class Presence:
    """Marks this process as the rank of ``start`` until `close`.

    Raises HorovodInternalError if an ancestor of this process already is that rank of that job.
    """

    def __init__(self, start: Start) -> None:
        self._fd = -1
        self._is_over = False
        if start.size == 1:
            return  # another job of one rank does no harm
        name = name_of(start, start.rank)
        for pid in _ancestors():
            if name in names_at(pid):
                raise HorovodInternalError(
                    f"this process, {os.getpid()}, was started by process {pid}, which is rank {start.rank} itself; "
                    "two processes cannot be the same rank. If the script starts processes that import it, such as "
                    'data-loader workers, call hvd.init() under if __name__ == "__main__" only. A child may call it '
                    "after its parent's hvd.shutdown()."
                )
        self._fd = os.memfd_create(name, os.MFD_CLOEXEC)

    @property
    def is_over(self) -> bool:
        return self._is_over

    def close(self) -> None:
        """Removes the mark. May be called twice."""
        self._is_over = True
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    __del__ = close


def name_of(start: Start, rank: int) -> str:
    """The name of the descriptor that marks ``rank`` of the job of ``start``."""
    return "hvdlite-rank-" + hashlib.blake2b(repr((*job_of(start), rank)).encode(), digest_size=8).hexdigest()


def job_of(start: Start) -> tuple[object, ...]:
    """The settings that all processes of a job share, and that differ from other jobs' on this host."""
    return (start.job, start.rendezvous, start.coordinator, start.size)


def names_at(pid: int) -> set[str]:
    """The names of the memfds of process ``pid``, if this user may read them; among them may be marks of ranks."""
    try:
        targets = [_target(f"/proc/{pid}/fd/{each}") for each in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return set()
    return {target.removeprefix(_MEMFD).split(" ")[0] for target in targets if target.startswith(_MEMFD)}


def _ancestors() -> Iterator[int]:
    pid = os.getppid()
    while pid > 1:
        yield pid
        try:
            pid = stat_of(pid).parent
        except OSError:  # it ended meanwhile, or /proc is not there
            return


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
