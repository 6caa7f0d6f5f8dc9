"""Makes a process of an engine a rank of a job, and an ordinary process again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from hvdlite.errors import HorovodInternalError
from hvdlite.hosted.placement import Seat
from hvdlite.net.listening import LOOPBACK, listen_at
from hvdlite.rendezvous.job import Job
from hvdlite.rendezvous.server import RendezvousServer
from hvdlite.session import shutdown


def serve(job: Job, seat: Seat) -> RendezvousServer:
    """Serves the rendezvous of ``job`` in this process, which has the ``seat`` of rank 0, until it is closed.

    All ranks use its ``address``. Raises HorovodInternalError if this process cannot listen at its node's address.
    """
    address = seat.node.address if seat.has_neighbours else LOOPBACK
    try:
        return RendezvousServer(job, seat.size, listen_at(address, 0))
    except OSError as error:
        raise HorovodInternalError(
            f"rank 0 runs on {seat.host}, and cannot listen at {address}, the address by which that node is known "
            f"({error.strerror}); give the node an address of its own that the other nodes can reach"
        ) from None


@contextmanager
def joined(seat: Seat, job: Job, rendezvous: str, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """A context in which this process is the rank of ``seat``: ``hvd.init()`` joins the ``job`` there.

    ``rendezvous`` is the address of `serve`, and ``environment`` is added to this process's. At the end the rank has
    left the job, and the environment is restored.
    """
    user = {**os.environ, **(environment or {})}
    ours = {
        **seat.variables,
        "HVDLITE_JOB": job.name,
        "HVDLITE_SECRET": job.secret,
        "HVDLITE_RENDEZVOUS": rendezvous,
    }
    if seat.has_neighbours and not user.get("HVDLITE_ADDRESS"):
        ours["HVDLITE_ADDRESS"] = seat.node.address
    added = {**(environment or {}), **ours}
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        try:
            shutdown()
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


class Member:
    """This process as a rank for several calls, from `join` to `leave`."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.seat: Seat | None = None

    def serve(self, job: Job, seat: Seat) -> str:
        """Serves the rendezvous until `leave`, as `serve` does; returns its address."""
        return self._stack.enter_context(serve(job, seat)).address

    def join(self, seat: Seat, job: Job, rendezvous: str, environment: Mapping[str, str] | None = None) -> None:
        """Makes this process the rank of ``seat``; see `joined`."""
        self._stack.enter_context(joined(seat, job, rendezvous, environment))
        self.seat = seat

    def leave(self) -> None:
        """Leaves the job, if this process is in one."""
        self.seat = None
        self._stack.close()
