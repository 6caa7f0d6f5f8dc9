"""The first and the last rank to be ready for a decision of the root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNKNOWN: Final = -1


@dataclass(slots=True)
class Arrival:
    """The arrival of news between two decisions of the root.

    Those of ``first_rank`` were the first, at ``first_at``. Those of ``last_rank``, at ``last_at``, completed something
    for which the others had waited longest: for ``late_s``, since the latest of them was heard of. It is UNKNOWN where
    not all ranks take part, as in a message or after some have joined. Ranks count within the group. The news of
    another host come through its leader; for its ranks, the others are those of other hosts.
    """

    first_rank: int = UNKNOWN
    first_at: float = 0.0
    last_rank: int = UNKNOWN
    last_at: float = 0.0
    late_s: float = 0.0
