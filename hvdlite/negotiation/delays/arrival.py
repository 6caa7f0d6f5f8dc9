"""The first and the last rank to be ready for a decision of the root."""

from __future__ import annotations

from typing import Final, TypeAlias

UNKNOWN: Final = -1

Arrival: TypeAlias = tuple[int, float, int, float, float]
"""When news came between two decisions of the root: ``(first_rank, first_at, last_rank, last_at, late_s)``.

``first_rank`` sent the first news, at ``first_at``. The news of ``last_rank``, at ``last_at``, completed the tensor for
which the other ranks had waited longest: for ``late_s``, since the latest of their news. ``last_rank`` is UNKNOWN where
not all ranks take part, as in a message or after some have joined. Ranks count within the group. The news of another
host comes through its leader; for a rank of that host, the other ranks are the ranks of other hosts.

It is a plain tuple because the root makes some for each decision, and a class costs several times as much.
"""

NO_ARRIVAL: Final[Arrival] = (UNKNOWN, 0.0, UNKNOWN, 0.0, 0.0)
