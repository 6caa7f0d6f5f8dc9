"""The first and the last rank to be ready for a decision of the root."""

from __future__ import annotations

from typing import Final, TypeAlias

UNKNOWN: Final = -1

Arrival: TypeAlias = tuple[int, float, int, float, float]
"""The arrival of news between two decisions of the root: ``(first_rank, first_at, last_rank, last_at, late_s)``.

Those of ``first_rank`` were the first, at ``first_at``. Those of ``last_rank``, at ``last_at``, completed something
for which the others had waited longest: for ``late_s``, since the latest of them was heard of. It is UNKNOWN where
not all ranks take part, as in a message or after some have joined. Ranks count within the group. The news of
another host come through its leader; for its ranks, the others are those of other hosts.

It is a plain tuple because the root makes some for each decision, and a class costs several times as much.
"""

NOT_KNOWN: Final[Arrival] = (UNKNOWN, 0.0, UNKNOWN, 0.0, 0.0)
