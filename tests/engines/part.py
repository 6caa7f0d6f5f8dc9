"""What the ranks of the contract do: ``python part.py SCENARIO FOLDER ENDING``, or `play` where engines call functions.

Ranks write what they see to a pipe of the folder, as lines of JSON, and wait at another until the test lets them go on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import numpy as np

import hvdlite as hvd
from hvdlite.rendezvous.job import Job
from tests.harness.patience import PROMPT_S

FAILING = 1
MESSAGE = "told by rank 1 alone"
ENDED_BY_ENGINE = "ended"  # what an engine does to the others when one rank fails; else they are
LEFT_ALONE = "left"


class Part:
    """This rank, from ``init`` on."""

    def __init__(self, folder: str) -> None:
        self._reports = os.open(f"{folder}/reports", os.O_WRONLY)
        self._gate = os.open(f"{folder}/gate", os.O_RDONLY)
        self._keys = _keys_from_now_on()
        hvd.init()

    def report(self, event: str, **fields: Any) -> None:
        """Tells the test, in one piece: the ranks share the pipe."""
        line = {"event": event, "rank": hvd.rank(), "at": time.monotonic(), **fields}
        os.write(self._reports, json.dumps(line).encode() + b"\n")

    def is_ready(self) -> float:
        """Tells where this rank is, and what a first all-reduce returned, which it returns as well."""
        total = float(hvd.allreduce(np.full(1000, hvd.rank() + 1.0), name="ready", op=hvd.Sum)[-1])
        place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
        self.report("ready", pid=os.getpid(), place=place, total=total, keys=sorted(self._keys))
        return total

    def wait(self) -> None:
        """Waits until the test, which holds the other end, closes it."""
        os.read(self._gate, 1)


def play(scenario: str, folder: str, ending: str) -> dict[str, Any]:
    """Plays a rank of ``scenario``; returns its result if it has one."""
    if scenario in ("raises", "killed"):
        # An engine may end the others at once, who are to say first what they see. Threads that start later inherit it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    part = Part(folder)
    total = part.is_ready()
    if scenario != "waits" or hvd.rank() == FAILING:
        part.wait()
    if scenario == "agrees":
        place = hvd.rank()
        hvd.shutdown()
        return {"rank": place, "total": total}
    if hvd.rank() == FAILING:
        part.report("fails")
        if scenario == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError(MESSAGE)
    try:
        hvd.allreduce(np.ones(10), name="never complete")
    except (hvd.PeerLost, hvd.ShutDown) as error:  # an engine may use the process of a rank that failed for others
        part.report("lost", lost=error.rank)
        if ending == ENDED_BY_ENGINE:  # otherwise it could look like the first to fail
            signal.sigtimedwait({signal.SIGTERM}, PROMPT_S)
        raise
    raise AssertionError("an all-reduce without a rank has returned")


def _keys_from_now_on() -> set[str]:
    """The keys that this rank was given, and from now on those of every job that it makes or joins."""
    keys = {value for name, value in os.environ.items() if name in ("HVDLITE_SECRET", "HVDLITE_RUN_SECRET")}
    check = Job.__post_init__

    def note(job: Job) -> None:
        check(job)
        keys.add(job.secret)

    Job.__post_init__ = note  # type: ignore[method-assign]
    return keys


if __name__ == "__main__":
    play(*sys.argv[1:])
