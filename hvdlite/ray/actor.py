"""The actor in which a rank runs."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import ray

from hvdlite.compat import install_as_horovod
from hvdlite.hosted.joining import Member
from hvdlite.hosted.outcomes import Outcome, call
from hvdlite.hosted.placement import Node, Seat
from hvdlite.rendezvous.job import Job

END_S: Final = 10.0  # for ranks to leave their job before their processes are ended


def this_node() -> Node:
    """The node of this process, as Ray knows it."""
    return Node(ray.get_runtime_context().get_node_id(), socket.gethostname(), ray.util.get_node_ip_address())


class RankActor:
    """A process that is a rank from `join` to `leave`, or to the first call that fails.

    The job's key is no argument of the constructor, because Ray stores those to restart actors.
    """

    def __init__(self, title: str, as_horovod: bool) -> None:
        """Ray puts ``title`` before what the rank prints. ``as_horovod`` makes ``import horovod`` mean hvdlite here."""
        if as_horovod:
            install_as_horovod()  # before a function that needs it is unpickled
        self._title = title
        self._member = Member()
        self._executable: Any = None

    def __repr__(self) -> str:
        """Ray puts it before each line that this process prints."""
        return self._title

    def place(self) -> tuple[Node, list[str]]:
        """The node, and the GPUs that this process may use."""
        return this_node(), ray.get_runtime_context().get_accelerator_ids().get("GPU", [])

    def is_member(self) -> bool:
        """True between `join` and the end of the job here."""
        return self._member.seat is not None

    def serve(self, job: Job, seat: Seat) -> str:
        """Serves the rendezvous; returns its address."""
        return self._member.serve(job, seat)

    def join(self, seat: Seat, job: Job, rendezvous: str, environment: Mapping[str, str]) -> None:
        """Becomes a rank of ``job``."""
        self._member.join(seat, job, rendezvous, environment)

    def leave(self) -> None:
        """Leaves the job."""
        self._member.leave()

    def make(self, work: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]) -> Outcome:
        """Makes the object that functions of `execute` are called with."""
        outcome = self.run(work)
        self._executable = outcome.result
        return replace(outcome, result=None)

    def run(self, work: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]) -> Outcome:
        """Calls a function as this rank. If that fails, the rank leaves the job, so that the others do not wait."""
        seat = self._member.seat
        assert seat is not None
        outcome = call(*work, seat)
        if not outcome.is_success:
            self._member.leave()
        return outcome

    def execute(self, work: Callable[[Any], Any]) -> Outcome:
        """As `run`, with the object of `make`."""
        return self.run((work, (self._executable,), {}))

    def value(self, work: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]) -> Any:
        """As `run`, but returns the result itself. Raises FunctionFailed."""
        outcome = self.run(work)
        if not outcome.is_success:
            raise outcome.error()
        return outcome.result
