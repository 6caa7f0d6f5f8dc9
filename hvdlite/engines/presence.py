"""Whether a process above this one is the rank that this one would be.

A child inherits its parent's environment, and so its rank: a data-loader worker that is spawned, for one, imports a
script that calls ``init`` at the top. A process that is in ``init`` or in a session shows that by a descriptor, whose
name others of the same user can read in ``/proc`` and which ends with the session. So a parent that has left no longer
counts, and what merely lies between (shells, debuggers, launchers) never does.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

from hvdlite.engines.ancestor import parent_of
from hvdlite.errors import HorovodInternalError
from hvdlite.settings import Settings


class Presence:
    """This process is the rank of ``settings`` until `close`.

    Raises HorovodInternalError if a process that started this one, at any remove, is that rank of that job already.
    """

    def __init__(self, settings: Settings) -> None:
        self._fd = -1
        if settings.size == 1:
            return  # nobody is kept waiting by another job of one
        job = (settings.job, settings.rendezvous, settings.coordinator, settings.size, settings.rank)
        name = "hvdlite-rank-" + hashlib.blake2b(repr(job).encode(), digest_size=8).hexdigest()
        for pid in _ancestors():
            if _has(pid, name):
                raise HorovodInternalError(
                    f"this process, {os.getpid()}, was started by process {pid}, which is rank {settings.rank} itself; "
                    "two processes cannot be the same rank. If the script starts processes that import it, such as "
                    'data-loader workers, call hvd.init() under if __name__ == "__main__" only. A child may call it '
                    "after its parent's hvd.shutdown()."
                )
        self._fd = os.memfd_create(name, os.MFD_CLOEXEC)

    def close(self) -> None:
        """Ends it; may be called twice."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    __del__ = close


def _ancestors() -> Iterator[int]:
    pid = os.getppid()
    while pid > 1:
        yield pid
        try:
            pid = parent_of(pid)
        except OSError:  # it ended meanwhile, or /proc is not there
            return


def _has(pid: int, name: str) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # another user's
        return False
    return any(_target(f"/proc/{pid}/fd/{each}").startswith(f"/memfd:{name} ") for each in descriptors)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
