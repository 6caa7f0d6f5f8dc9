"""The actors of one `RayExecutor`, and the jobs that they form one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from hvdlite.compat import stands_for_horovod
from hvdlite.errors import LaunchError, PeerLost, ShutDown
from hvdlite.hosted.outcomes import Outcome, lost, values
from hvdlite.hosted.placement import Seat, by_node, seats
from hvdlite.ray.actor import END_S, RankActor
from hvdlite.ray.options import Workers
from hvdlite.ray.placement import Reserved
from hvdlite.rendezvous.job import Job
from hvdlite.scope import Scope

_AGAIN: Final = "call shutdown() and start()"
_GRACE_S: Final = 10.0  # after a failure, for the outcomes of the other ranks and Ray's report of a death
START_S: Final = 900.0  # for Ray to start processes in which ranks can run; a runtime_env may install packages first


class Crew:
    """The actors, in the order of their ranks.

    They join a new job, with a new key, before the first call and after a failed one. Otherwise a session that `init`
    begins lasts from call to call.
    """

    def __init__(self, workers: Workers, reserved: Reserved, start_s: float, environment: Mapping[str, str]) -> None:
        """Starts the actors. Raises LaunchError if they do not start within ``start_s``."""
        self._environment = environment
        self._actors: list[Any] = []
        try:
            for rank in range(workers.count):
                actor = ray.remote(RankActor).options(
                    num_cpus=workers.cpus, num_gpus=workers.gpus, scheduling_strategy=reserved.strategy(rank)
                )
                self._actors.append(
                    actor.remote(f"rank {rank}" if reserved.is_own else "hvdlite", stands_for_horovod())
                )
            places = self._get([actor.place.remote() for actor in self._actors], start_s, _too_late(workers, reserved))
        except BaseException:
            self.kill()
            raise
        order = by_node([node for node, _ in places])
        self._actors = [self._actors[index] for index in order]
        self.seats = seats([places[index][0] for index in order])
        gpus = [places[index][1] for index in order]
        self._visible = [self._gpus_of_node(rank, gpus) for rank in range(workers.count)]

    def call(self, method: str, work: Any) -> list[Any]:
        """Has every rank run ``method`` with ``work``; returns the results by rank, or raises the first failure.

        Actors that are still in the call then are killed.
        """
        return self._results(self.submit(method, work))

    def call_first(self, method: str, work: Any) -> Any:
        """As `call`, on rank 0 alone."""
        return self._results(self.submit(method, work, 1))[0]

    def submit(self, method: str, work: Any, ranks: int | None = None) -> list[Any]:
        """Has every rank, or the first ``ranks``, run ``method`` with ``work``; returns references of the results."""
        try:
            if not all(self._get([actor.is_member.remote() for actor in self._actors])):
                self._form_job()
        except KeyboardInterrupt:
            self.kill()
            raise
        shared = ray.put(work)
        return [getattr(actor, method).remote(shared) for actor in self._actors[:ranks]]

    def end(self) -> None:
        """Ends the actors. Idle ones leave the job first, so that no rank reports another as lost."""
        ray.wait([actor.leave.remote() for actor in self._actors], num_returns=len(self._actors), timeout=END_S)
        self.kill()

    def kill(self) -> None:
        """Ends the actors at once."""
        for actor in self._actors:
            ray.kill(actor)

    def _form_job(self) -> None:
        self._get([actor.leave.remote() for actor in self._actors])
        job = Job.create()
        address = self._get([self._actors[0].serve.remote(job, self.seats[0])])[0]
        joining = [
            actor.join.remote(seat, job, address, {**visible, **self._environment})
            for actor, seat, visible in zip(self._actors, self.seats, self._visible, strict=True)
        ]
        self._get(joining)

    def _results(self, references: Sequence[Any]) -> list[Any]:
        pending = dict(zip(references, self.seats, strict=False))
        outcomes: list[Outcome] = []
        scope = Scope()
        try:
            while pending and (ready := ray.wait(list(pending), num_returns=1, timeout=scope.timeout_s)[0]):
                outcomes += [_outcome(reference, pending.pop(reference)) for reference in ready]
                if scope.timeout_s is None and not outcomes[-1].is_success:
                    scope = Scope.of(_GRACE_S)
        finally:
            if pending:
                self.kill()
        blamed = {outcome.follows.rank: outcome.follows for outcome in outcomes if outcome.follows is not None}
        return values(outcomes + [_lost(seat, blamed[seat.rank]) for seat in pending.values() if seat.rank in blamed])

    def _get(self, references: Sequence[Any], timeout_s: float | None = None, too_late: str = "") -> list[Any]:
        """The values of ``references``. Raises LaunchError if an actor has ended, or does not answer in time."""
        try:
            found: list[Any] = ray.get(list(references), timeout=timeout_s)
        except GetTimeoutError:
            raise LaunchError(f"an actor did not answer within {timeout_s:g} s: {too_late}") from None
        except RayTaskError:
            raise
        except RayError as error:
            raise LaunchError(f"an actor has ended: {_reason(error)}; {_AGAIN}") from None
        return found

    def _gpus_of_node(self, rank: int, gpus: Sequence[Sequence[str]]) -> dict[str, str]:
        """Makes the GPUs of all ranks of the node visible to each of them, by rank, as Horovod and Ray Train do.

        Scripts then choose theirs by their local rank.
        """
        here = self.seats[rank].node.id
        visible = [gpu for seat, own in zip(self.seats, gpus, strict=True) if seat.node.id == here for gpu in own]
        return {"CUDA_VISIBLE_DEVICES": ",".join(visible)} if visible else {}


def _too_late(workers: Workers, reserved: Reserved) -> str:
    if reserved.is_own:
        return "Ray has not started its process, which may wait for a runtime_env to be installed"
    needs = f"{workers.cpus:g} CPU" + (f" and {workers.gpus} GPU" if workers.gpus else "")
    return (
        f"does the current placement group have room for {workers.count} ranks with {needs} each, beside its other "
        "tasks and actors? use_current_placement_group=False makes a new one"
    )


def _outcome(reference: Any, seat: Seat) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
    except RayTaskError as error:  # Ray could not send the function or the result
        return Outcome(seat.rank, seat.host, failure=str(error))
    except RayError as error:
        return Outcome(seat.rank, seat.host, death=lost(f"died: {_reason(error)}", _AGAIN))
    return outcome


def _lost(seat: Seat, reason: PeerLost | ShutDown) -> Outcome:
    """The outcome of a rank that has not returned, and that another one blames."""
    cause = reason.cause if isinstance(reason, PeerLost) else "it no longer answers"
    return Outcome(seat.rank, seat.host, death=f"was lost: {cause}")


def _reason(error: RayError) -> str:
    """The last line of Ray's message about the end of an actor, which is the reason."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    return lines[-1].partition(" Some common causes")[0].rstrip(".") if lines else type(error).__name__
