"""Time limits of tests, on a machine that others use too.

A limit that only ends a hang is `PATIENCE_S`, and says nothing about the code. A limit that is the claim of a test,
such as "at once", means "not after some time-out". Such a test sets that time-out beyond its patience, as
`ProcessRanks` does with those that no test sets (`LAST_RESORTS`), so that a wait ends for the right reason. Where a
time-out cannot be set, the limit is `PROMPT_S`: many times the usual duration, and less than the time-out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = float(os.environ.get("TEST_PATIENCE_S", "300"))
PROMPT_S: Final = 30.0

_BEYOND: Final = str(4 * PATIENCE_S)
LAST_RESORTS: Final = {f"HVDLITE_{name}_TIMEOUT": _BEYOND for name in ("START", "PROGRESS")}
"""Settings that keep a waiting rank from giving up before the test does."""
STALLED: Final = {"HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": str(PATIENCE_S / 2)}
"""Settings that make ranks which wait in vain report for what, before the test gives up."""
NEVER_SILENT: Final = {"HVDLITE_PEER_TIMEOUT": _BEYOND}
"""Settings with which silence never loses a rank: a lost rank has ended, or its link has."""
NO_TIMER: Final = {"HVDLITE_HEARTBEAT_INTERVAL": _BEYOND}
"""Settings with which a rank that is not woken sleeps on, instead of looking for work by itself."""


def until(condition: Callable[[], bool]) -> None:
    """Waits, looking again and again, until ``condition`` is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)  # how often it looks
