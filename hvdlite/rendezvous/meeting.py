"""The meeting point of a job's ranks in ``init``, which depends on what started them.

hvdrun serves the rounds itself, and gives its ranks the address and the key in their environment. If another engine
started the ranks, rank 0 serves the rounds of one ``init``. On one host it sends address and key to the others
(`hvdlite.rendezvous.handover`); across hosts it listens at the address that the engine or the user gave, and callers
need the user's key (`hvdlite.rendezvous.across_hosts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

from hvdlite.rendezvous.across_hosts import meet_across_hosts
from hvdlite.rendezvous.client import Meeting
from hvdlite.rendezvous.handover import meet_on_one_host
from hvdlite.rendezvous.job import Job
from hvdlite.scope import Scope
from hvdlite.settings import Start


class Place(Enum):
    """Where the ranks of a job meet."""

    NOWHERE = "a job of one"
    LAUNCHER = "at hvdrun"
    COORDINATOR = "at the coordinator"
    HOST = "on this host"


def place_of(start: Start) -> Place:
    """The place for the ranks of ``start``. Raises ValueError if nothing says where they meet."""
    if start.size == 1:
        return Place.NOWHERE
    if start.rendezvous:
        return Place.LAUNCHER
    if start.coordinator:
        return Place.COORDINATOR
    if start.job and start.local_size == start.size:
        return Place.HOST
    raise ValueError(
        f"this is rank {start.rank} of {start.size}, but nothing says where the others are; start the "
        "program with hvdrun -np N, or give every rank HVDLITE_COORDINATOR=HOST:PORT of rank 0 and HVDLITE_SECRET"
    )


_SILENCE_OF_SERVER: Final = ("is hvdrun still running?", "is rank 0 still running?")


@contextmanager
def meet(start: Start, number: int, scope: Scope) -> Iterator[Meeting]:
    """The meeting of the ``number``-th init of a job; rank 0 may serve it until the end of the context.

    Raises ValueError if nothing says where ranks meet, and HorovodInternalError if they do not come in time.
    """
    place = place_of(start)
    if place is Place.NOWHERE:
        yield Meeting(Job.create())
    elif place is Place.LAUNCHER:
        yield Meeting(launchers_job(start), start.rendezvous, _SILENCE_OF_SERVER[start.rendezvous.startswith("tcp://")])
    elif place is Place.COORDINATOR:
        with meet_across_hosts(start, number) as meeting:
            yield meeting
    else:
        with meet_on_one_host(start, number, scope) as meeting:
            yield meeting


def launchers_job(start: Start) -> Job:
    """The job that hvdrun has made. Raises ValueError if its name or key is missing."""
    if not (start.job and start.secret):
        raise ValueError(
            "HVDLITE_RENDEZVOUS needs HVDLITE_JOB and HVDLITE_SECRET beside it; start the program with hvdrun -np N"
        )
    return Job(start.job, start.secret)
