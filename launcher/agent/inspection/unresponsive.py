"""Notices unresponsive ranks, in which no Python runs: a native call holds the GIL, or they get no processor.

Rank 0 finds the ranks for which others wait, but not if it is such a rank itself. So the agent reports it, and hvdrun
asks whether others wait.
"""

from __future__ import annotations

import math
from typing import Final

from hvdlite.blackbox import format as blackbox
from hvdlite.blackbox.format import AWAKE_AT, HEAD, NUMBER, OFFER, OFFER_AT, Finding, Phase

_FINDER: Final = 0  # the rank that finds the others
_MARGIN: Final = 1.1  # after which it would have found them
_MARGIN_S: Final = 2.0  # and its agent have reported them


class Unresponsive:
    """Looks at the black boxes of ranks, each again and again."""

    def __init__(self) -> None:
        self._reported_at: dict[int, float] = {}  # by rank

    def look(self, rank: int, memory: blackbox.Memory, now: float) -> Finding | None:
        """A finding about ``rank`` at ``now``, on the monotonic clock: again each time that its patience ends."""
        mark, *_, phase = HEAD.unpack_from(memory)
        patience_s = float(OFFER.unpack_from(memory, OFFER_AT)[-1])
        awake_at = float(NUMBER.unpack_from(memory, AWAKE_AT)[0])
        is_inside = mark == blackbox.MARK and phase == Phase.INSIDE and awake_at > 0
        limit_s = patience_s if rank == _FINDER else _MARGIN * patience_s + _MARGIN_S
        if not (is_inside and patience_s > 0 and now - awake_at >= limit_s):
            self._reported_at.pop(rank, None)
            return None
        if now - self._reported_at.get(rank, -math.inf) < patience_s:
            return None
        self._reported_at[rank] = now
        facts = {"seconds": now - awake_at, "patience_s": patience_s}
        return Finding("unresponsive", f"no Python of rank {rank} has run for {now - awake_at:.0f} s", facts)
