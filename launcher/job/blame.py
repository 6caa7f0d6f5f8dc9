"""Gathers what hvdrun knows of the rank to blame, for the box about a failed job."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ..hosts import is_local
from ..options.of_python import python_of
from ..screen.screen import Screen
from ..screen.texts import describe_failure
from .logs import Logs
from .plan import Plan
from .supervisor import Failure


def box(
    failure: Failure, plan: Plan, screen: Screen, logs: Logs | None, *, done: bool, batches: int | None
) -> Iterator[str]:
    """The lines of the box. The rank to look at is ``done`` if it ended with code 0, after so many ``batches``."""
    rank = failure.to_look_at
    stream = screen.stream_of_tail(rank)
    is_here = is_local(plan.placements[rank].host)
    return describe_failure(
        failure,
        screen.tail(rank),
        logs.path(rank, stream) if logs else None,
        stream,
        are_in_sight=screen.is_in_sight(rank),
        python=python_of(plan.command, plan.environment.get("PATH", os.defpath)) if is_here else "",
        crash=screen.crash(rank) if rank == failure.rank and failure.is_by_signal else (),
        done=done,
        batches=batches,
    )
