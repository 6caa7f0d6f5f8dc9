"""A task of the barrier stage: it finds its rank, joins the job and calls the function.

The tasks exchange where they run. Rank 0 makes the job's key, serves the rendezvous, and sends key and address to the
others through the driver, which stores neither. If Spark repeats the stage, it is another job with another key.
"""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from pyspark import Accumulator, BarrierTaskContext, cloudpickle

from hvdlite.compat import install_as_horovod, stands_for_horovod
from hvdlite.errors import HorovodInternalError, PeerLost, ShutDown, WorkerFailed
from hvdlite.host.hostid import kernel_host_id
from hvdlite.hosted.joining import serve
from hvdlite.hosted.outcomes import Outcome, attempt
from hvdlite.hosted.placement import Node, Seat, by_node, seats
from hvdlite.ops.by_value import UNPICKLABLE
from hvdlite.rendezvous.job import Job


class NameOfHorovod:
    """Makes ``import horovod`` mean hvdlite in the process that unpickles it, if it does in the one that pickled it."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return (install_as_horovod if stands_for_horovod() else bool), ()


class Call(NamedTuple):
    """The call of all ranks; before it they wait for each other, ``timeout_s`` at most.

    ``horovod`` is first, so that it is unpickled before a function whose module imports horovod.
    """

    horovod: Any
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    environment: Mapping[str, str]
    timeout_s: float


def in_order_of_ranks(hosts: Sequence[str]) -> list[int]:
    """The stage's partitions by rank, given the host of each as Spark knows it."""
    return by_node([Node(host, host, host) for host in hosts])


def run_rank(call: Call, failed: Accumulator[list[Outcome]], partition: Iterable[Any]) -> Iterator[Outcome]:
    """Runs the rank of this task, and yields its outcome.

    Adds this rank's own failure to ``failed``, which the driver sees while others still run. If another rank was lost,
    raises WorkerFailed for it, so that Spark ends the stage even if it has not noticed the loss.
    """
    outcome = _outcome(call, BarrierTaskContext.get())
    if isinstance(outcome.follows, PeerLost):
        lost = outcome.follows
        raise WorkerFailed(lost.rank, lost.host, 1, [], f"was lost: {lost.cause}")
    if not outcome.is_success and outcome.follows is None:
        failed.add([outcome])
    yield outcome


def _outcome(call: Call, context: BarrierTaskContext) -> Outcome:
    with ExitStack() as stack:
        with _at_most(call.timeout_s, len(context.getTaskInfos())):
            hosts = [info.address.rpartition(":")[0].strip("[]") for info in context.getTaskInfos()]
            places = map(json.loads, context.allGather(json.dumps([kernel_host_id(), socket.gethostname()])))
            nodes = [Node(f"{host} {kernel}", name, host) for host, (kernel, name) in zip(hosts, places, strict=True)]
            order = in_order_of_ranks(hosts)
            seat = seats([nodes[partition] for partition in order])[order.index(context.partitionId())]
            meeting = json.loads(context.allGather(_meeting(seat, stack) if seat.rank == 0 else "")[order[0]])
        if "error" in meeting:
            follows = ShutDown(0, meeting["error"]) if seat.rank else None
            return Outcome(seat.rank, seat.host, failure=meeting["error"], follows=follows)
        job = Job(meeting["job"], meeting["key"])
        _, function, args, kwargs, environment, _ = call
        return attempt(function, args, kwargs, seat, job, meeting["rendezvous"], environment, _dumps)


def _dumps(result: Any) -> bytes:
    """Pickles ``result`` with PySpark's cloudpickle, which pickled the function too."""
    try:
        return bytes(cloudpickle.dumps(result))
    except UNPICKLABLE as error:
        raise ValueError(f"cannot be sent to the driver: {error}") from None


def _meeting(seat: Seat, stack: ExitStack) -> str:
    """Makes a job and serves its rendezvous until the end of ``stack``; returns both, or an error, as JSON."""
    job = Job.create()
    try:
        server = stack.enter_context(serve(job, seat))
    except HorovodInternalError as error:
        return json.dumps({"error": str(error)})
    return json.dumps({"job": job.name, "key": job.secret, "rendezvous": server.address})


@contextmanager
def _at_most(timeout_s: float, size: int) -> Iterator[None]:
    """Raises HorovodInternalError after ``timeout_s``. Spark itself would wait for a stopped task for a year.

    Uses a signal, because PySpark waits on a socket without a time-out. Tasks run in the main thread.
    """

    def give_up(*_: Any) -> None:
        raise HorovodInternalError(
            f"not all {size} tasks of the stage have sent the others where they run, after {timeout_s:g} s; is one of "
            "their processes stopped?"
        )

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
