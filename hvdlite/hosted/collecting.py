"""Waits for the outcomes of all ranks, after a failure for a limited time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from hvdlite.errors import PeerLost, ShutDown
from hvdlite.hosted.outcomes import Outcome
from hvdlite.hosted.placement import Seat
from hvdlite.scope import Scope

GRACE_S: Final = 10.0  # after a failure, for the outcomes of the other ranks and the engine's report of a death


def collect(seats: Sequence[Seat], wait: Callable[[Scope], list[Outcome]]) -> list[Outcome]:
    """The outcomes of the ranks of ``seats`` in the order of their arrival.

    ``wait`` returns new outcomes, at least one unless its scope is over. Ranks that have not returned `GRACE_S` after
    the first failure are left out, unless another rank blames them: those count as lost.
    """
    outcomes: list[Outcome] = []
    scope = Scope()
    while len(outcomes) < len(seats):
        came = wait(scope)
        if not came:
            break
        outcomes += came
        if scope.timeout_s is None and not all(outcome.is_success for outcome in came):
            scope = Scope.of(GRACE_S)
    here = {outcome.rank for outcome in outcomes}
    blamed = {outcome.follows.rank: outcome.follows for outcome in outcomes if outcome.follows is not None}
    return outcomes + [_lost(seat, blamed[seat.rank]) for seat in seats if seat.rank in blamed.keys() - here]


def _lost(seat: Seat, reason: PeerLost | ShutDown) -> Outcome:
    cause = reason.cause if isinstance(reason, PeerLost) else "it no longer answers"
    return Outcome(seat.rank, seat.host, death=f"was lost: {cause}")
