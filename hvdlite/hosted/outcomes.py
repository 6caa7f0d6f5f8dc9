"""The outcome of a call on every rank, and which of several failures came first.

A failure is a value, not an exception: engines end a job at the first exception, which may come from a rank that only
lost another one.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from hvdlite.errors import FunctionFailed, LaunchError, PeerLost, ShutDown, WorkerFailed
from hvdlite.hosted.joining import joined
from hvdlite.hosted.placement import Seat
from hvdlite.rendezvous.job import Job
from hvdlite.running.functions import dump, load
from hvdlite.tracebacks import shorten

_OURS: Final = os.path.dirname(__file__) + "/"


def lost(how: str, again: str = "call it again") -> str:
    """The `Outcome.death` of a process that ended for an unknown reason; ``again`` is how to repeat the call."""
    return (
        f"{how}. If nothing else says why, its host may have run out of memory: see 'dmesg' there, and lower the batch "
        f"size or the ranks per host. Then {again}, from your last checkpoint"
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call on ``rank``: a ``result``, a ``failure``, or the ``death`` of the process.

    The ``result`` is the function's return value (`call`), or its pickle (`attempt`). ``failure`` is the text of a
    traceback; ``follows`` is set if its reason is the loss or the end of another rank. ``death`` describes how the
    process ended, with exit code ``code``.
    """

    rank: int
    host: str
    result: Any = None
    failure: str = ""
    follows: PeerLost | ShutDown | None = None
    death: str = ""
    code: int = 1

    @property
    def is_success(self) -> bool:
        return not (self.failure or self.death)

    def error(self) -> LaunchError:
        """The failure as an exception."""
        if self.death:
            return WorkerFailed(self.rank, self.host, self.code, [], self.death)
        return FunctionFailed(self.rank, self.host, self.failure)


def attempt(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    seat: Seat,
    job: Job,
    rendezvous: str,
    environment: Mapping[str, str] | None = None,
    dumps: Callable[[Any], bytes] = dump,
) -> Outcome:
    """Calls ``function(*args, **kwargs)`` in this process as the rank of ``seat``.

    ``dumps`` pickles the result, or raises ValueError. An engine that sends functions by value passes its own, which
    knows the classes that came with the function.
    """
    with joined(seat, job, rendezvous, environment):
        outcome = call(function, args, kwargs, seat)
        if not outcome.is_success:
            return outcome
        try:
            return replace(outcome, result=dumps(outcome.result))
        except ValueError as error:
            text = f"the result of rank {seat.rank}, a {type(outcome.result).__name__}, {error}"
            return Outcome(seat.rank, seat.host, failure=text)


def call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], seat: Seat) -> Outcome:
    """Calls ``function(*args, **kwargs)`` in this process, which is the rank of ``seat``."""
    try:
        return Outcome(seat.rank, seat.host, function(*args, **kwargs))
    except (Exception, SystemExit) as error:
        return _failure(seat, error)


def results(outcomes: Sequence[Outcome]) -> list[Any]:
    """The results by rank of what `attempt` returned; see `values`."""
    return [load(result) for result in values(outcomes)]


def values(outcomes: Sequence[Outcome]) -> list[Any]:
    """The results by rank of ``outcomes``, which are in the order of their arrival. Raises the first failure.

    A failure that `follows` from another rank counts only if no rank failed by itself.
    """
    failures = [outcome for outcome in outcomes if not outcome.is_success]
    if failures:
        first = next((outcome for outcome in failures if outcome.follows is None), failures[0])
        error = first.error()
        for other in failures:
            if other is not first and other.follows is None and not other.death:
                error.add_note(f"rank {other.rank} failed as well: {other.failure.splitlines()[-1]}")
        raise error
    return [outcome.result for outcome in sorted(outcomes, key=lambda outcome: outcome.rank)]


def _failure(seat: Seat, error: BaseException) -> Outcome:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    error = error.with_traceback(trace or error.__traceback__)
    follows = _origin(error)
    shorten(error)
    text = "".join(traceback.format_exception(error))
    return Outcome(seat.rank, seat.host, failure=text, follows=follows)


def _origin(error: BaseException | None) -> PeerLost | ShutDown | None:
    """The PeerLost or ShutDown in ``error`` and the errors from which it was raised; None if there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, PeerLost | ShutDown):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
