"""Notices ranks whose Python does not run: a native call holds the GIL, or the system does not let them run.

Rank 0 finds the ranks for which others wait, but cannot if it is such a rank itself. So the agent tells, and hvdrun
asks whether others wait.
"""

from __future__ import annotations

import math
from typing import Final

from hvdlite.observe import blackbox
from hvdlite.observe.blackbox import AWAKE_AT, HEAD, NUMBER, OFFER, OFFER_AT, Finding, Phase

_FINDER: Final = 0  # the rank that finds the others
_MARGIN: Final = 1.1  # after which it would have found them
_MARGIN_S: Final = 2.0  # and its agent have told


class Mute:
    """Looks at the black boxes of ranks, each again and again."""

    def __init__(self) -> None:
        self._told: dict[int, float] = {}  # when, by rank

    def look(self, rank: int, memory: blackbox.Memory, now: float) -> Finding | None:
        """What is to be told of ``rank`` at ``now``, on the monotonic clock: again each time that its patience ends."""
        mark, *_, phase = HEAD.unpack_from(memory)
        patience_s = float(OFFER.unpack_from(memory, OFFER_AT)[-1])
        awake_at = float(NUMBER.unpack_from(memory, AWAKE_AT)[0])
        is_inside = mark == blackbox.MARK and phase == Phase.INSIDE and awake_at > 0
        limit_s = patience_s if rank == _FINDER else _MARGIN * patience_s + _MARGIN_S
        if not (is_inside and patience_s > 0 and now - awake_at >= limit_s):
            self._told.pop(rank, None)
            return None
        if now - self._told.get(rank, -math.inf) < patience_s:
            return None
        self._told[rank] = now
        facts = {"seconds": now - awake_at, "patience_s": patience_s}
        return Finding("mute", f"no Python of rank {rank} has run for {now - awake_at:.0f} s", facts)
