"""Gathers what hvdrun knows of the rank to blame, for the box about a failed job, and of one without `init`."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hvdlite.compat import is_lent

from ..decisions.of_python import python_of
from ..decisions.plan import Plan
from ..decisions.supervisor import Failure
from ..screen.screen import Screen
from ..screen.texts import describe_failure, describe_strangers
from ..where.hosts import is_local
from .logs import Logs


def box(
    failure: Failure, plan: Plan, screen: Screen, logs: Logs | None, *, done: bool, batches: int | None
) -> Iterator[str]:
    """The lines of the box. The rank to look at is ``done`` if it ended with code 0, after so many ``batches``."""
    rank = failure.to_look_at
    stream = screen.stream_of_tail(rank)
    return describe_failure(
        failure,
        screen.tail(rank),
        logs.path(rank, stream) if logs else None,
        stream,
        are_in_sight=screen.is_in_sight(rank),
        python=_python_of(plan, rank),
        crash=screen.crash(rank) if rank == failure.rank and failure.is_by_signal else (),
        done=done,
        batches=batches,
    )


def strangers(plan: Plan) -> str:
    """The line about a job whose ranks did nothing together."""
    return describe_strangers(plan.size, _python_of(plan, 0), is_lent=is_lent(plan.environment))


def _python_of(plan: Plan, rank: int) -> str:
    """The interpreter of ``rank``, if that runs on this host and the command names one."""
    is_here = is_local(plan.placements[rank].host)
    return python_of(plan.command, plan.environment.get("PATH", os.defpath)) if is_here else ""
