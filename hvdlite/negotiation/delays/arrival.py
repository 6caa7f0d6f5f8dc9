"""The first and the last rank whose news arrived before a decision of the root."""

from __future__ import annotations

from typing import Final, TypeAlias

UNKNOWN: Final = -1

Arrival: TypeAlias = tuple[int, float, int, float, float]
"""When news arrived between two decisions of the root: ``(first_rank, first_at, last_rank, last_at, late_s)``.

The first news, at ``first_at``, was from ``first_rank``. The news of ``last_rank``, at ``last_at``, completed the
tensor for which other ranks had waited longest: for ``late_s`` seconds, since the latest news of another rank.
``last_rank`` is UNKNOWN if not all ranks took part, as in a SEND or after some ranks have joined. Ranks are group
indices, and times are of the monotonic clock. The news of another host comes through its leader; for a rank of that
host, the other ranks are the ranks of other hosts.

It is a plain tuple because the root makes some for each decision, and a class costs several times as much.
"""

NO_ARRIVAL: Final[Arrival] = (UNKNOWN, 0.0, UNKNOWN, 0.0, 0.0)
