"""A black box as it travels to hvdrun, and as it is kept in a file."""

from __future__ import annotations

import base64
import time
import zlib
from typing import Any

from hvdlite.blackbox import format as blackbox


def packed(rank: int, memory: blackbox.Memory) -> dict[str, Any]:
    """Packs what ``rank`` has written, now; empty if it has not begun to.

    ``at`` is now on the host's monotonic clock, and ``epoch_s`` what that showed, below zero, at the Unix epoch.
    """
    now = time.monotonic()
    if blackbox.look(memory) is None:
        return {}
    text = base64.b64encode(zlib.compress(memory[:], 1)).decode()  # a copy, since the rank writes on
    return {"rank": rank, "at": now, "epoch_s": now - time.time(), "box": text}
