"""Reports stopped ranks of this host while others wait for them in ``init``.

In a session ranks watch each other, and hvdrun notices if a process that it has started is stopped. In ``init`` nothing
else notices it of a rank below a shell or another wrapper, or in a job of torchrun, mpirun or srun.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hvdlite.log import logger
from hvdlite.rendezvous.presence import Presence
from hvdlite.rendezvous.stopped import stopped_processes, stopped_ranks
from hvdlite.settings import Start

_LOOK_S: Final = 1.5  # two looks in a row must find a rank stopped, so it is reported after 3 s at most
_AGAIN_S: Final = 60.0


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
        for rank, pids in ranks.items():
            if now - reported.get(rank, -_AGAIN_S) >= _AGAIN_S and not done.is_set():
                reported[rank] = now
                logger.warning(
                    "rank %d, process %s, is stopped (SIGSTOP, a debugger); ranks that wait for it in init() wait "
                    "until it continues (SIGCONT)",
                    rank,
                    ", ".join(map(str, pids)),
                )
