"""The functions that run in Dask's workers: a task per rank, and one that returns where the worker is."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Final, NamedTuple

from distributed import Status, Worker, get_worker

from hvdlite.host.hostid import kernel_host_id
from hvdlite.hosted.child import Call, call_in_child
from hvdlite.hosted.joining import serve
from hvdlite.hosted.outcomes import Outcome
from hvdlite.hosted.placement import Seat
from hvdlite.rendezvous.job import Job
from hvdlite.version import __version__

BEGUN: Final = "begun"
ENDED: Final = "ended"
_RUNNING: Final = (Status.running, Status.paused)


class Place(NamedTuple):
    """Where a worker runs: its host's id and name, and hvdlite's version there."""

    host_id: str
    host: str
    version: str


def place() -> Place:
    """The place of the worker that calls this."""
    return Place(kernel_host_id(), socket.gethostname(), __version__)


def topic_of(job: Job) -> str:
    """The topic on which the tasks of ``job`` log events: ``[BEGUN or ENDED, rank, rendezvous]``."""
    return f"hvdlite-{job.name}"


def run_rank(function: bytes, seat: Seat, job: Job, rendezvous: str, environment: dict[str, str]) -> Outcome:
    """Runs the rank of ``seat`` until it ends, this task is cancelled, or its worker leaves.

    Rank 0 serves the rendezvous, and reports its address to the caller, which passes it to the other tasks.
    """
    worker = get_worker()
    key = worker.get_current_task()
    topic = topic_of(job)
    with ExitStack() as stack:
        if seat.rank == 0:
            rendezvous = stack.enter_context(serve(job, seat)).address
        worker.log_event(topic, [BEGUN, seat.rank, rendezvous])
        try:
            call = Call(function, seat, job, rendezvous, environment)
            return call_in_child(call, lambda: _is_wanted(worker, key))
        finally:
            worker.log_event(topic, [ENDED, seat.rank, ""])


def _is_wanted(worker: Worker, key: object) -> bool:
    """False once the task ``key`` is cancelled, its client is gone, or the worker is about to leave."""
    task = worker.state.tasks.get(key)
    return worker.status in _RUNNING and task is not None and task.state in ("executing", "long-running")
