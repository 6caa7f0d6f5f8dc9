"""How long tests wait, on a machine that others use as well.

A bound on time that only ends a hang is `PATIENCE_S`, and says nothing about the code. A bound that is the claim of a
test, such as "at once", stands for "not by waiting for some time-out". Such a test sets that time-out beyond its
patience, as `ProcessRanks` does with those that no test sets (`LAST_RESORTS`), so that whatever ends has ended for the
right reason. Where a time-out cannot be set, the bound is `PROMPT_S`: many times what the thing takes, and less than
the time-out.
"""

from __future__ import annotations

import os
from typing import Final

PATIENCE_S: Final = float(os.environ.get("TEST_PATIENCE_S", "300"))
PROMPT_S: Final = 30.0

_BEYOND: Final = str(4 * PATIENCE_S)
LAST_RESORTS: Final = {f"HVDLITE_{name}_TIMEOUT": _BEYOND for name in ("START", "PROGRESS")}
"""Settings with which a rank that waits for others does not give up before the test does."""
STALLED: Final = {"HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": str(PATIENCE_S / 2)}
"""Settings with which ranks that wait for each other in vain say for what, before the test gives up."""
NEVER_SILENT: Final = {"HVDLITE_PEER_TIMEOUT": _BEYOND}
"""Settings with which no rank is lost because it was silent: one that is lost has ended, or its link has."""
NO_TIMER: Final = {"HVDLITE_HEARTBEAT_INTERVAL": _BEYOND}
"""Settings with which a rank that nobody wakes sleeps on, and does not look by itself what there is to do."""
