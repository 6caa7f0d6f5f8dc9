"""The optimizer of ``op=hvd.Adasum``: every rank takes its own step, and ranks combine the results of these steps.

Adasum adds the parts on which steps disagree and averages the parts on which they agree (Maleki et al., "Scaling
Distributed Training with Adaptive Summation", 2020), so many ranks need no smaller learning rate. It takes the steps of
whole optimizers, which include momentum and scale, not gradients.

So nothing is reduced during backward. `step` copies the parameters, lets the user's optimizer step, reduces the
differences in the parameters' own memory, and adds the copies. The optimizer's state stays different on each rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch

from hvdlite.errors import HorovodInternalError, HvdError
from hvdlite.ops import Group, group_of
from hvdlite.torch.optimizer.gradients import memory_of
from hvdlite.torch.optimizer.names import Named
from hvdlite.torch.optimizer.reduction import TensorReduction
from hvdlite.torch.optimizer.wrapping import Closure, DistributedStep, positive_passes
from hvdlite.training.naming import known_as
from hvdlite.training.parameter_check import ParameterCheck
from hvdlite.training.reduction import group_with_peers

Start = tuple[str, list[torch.Tensor], list[torch.Tensor]]
"""The name of a bucket, its parameters, and copies of them from before the step."""


class DeltaReducer:
    """Combines the steps of the parameters that `watch` adds."""

    def __init__(self, reduction: TensorReduction) -> None:
        self._reduction = reduction
        self._buckets: list[list[Named]] = []
        self._check = ParameterCheck(memory_of)
        self._torn_in: Group | None = None  # in which a step was interrupted

    def watch(self, members: Sequence[Named]) -> None:
        """Adds parameters that travel together, the same on all ranks. Does nothing outside the process set."""
        if self._reduction.process_set.included():
            self._buckets.append(known_as(group_of(self._reduction.process_set), "delta", members))
            self._check.watch(members, self._buckets[-1])

    def starts(self) -> list[Start]:
        """Copies the parameters before the next step. Empty if this rank has no peers."""
        starts: list[Start] = []
        if not self._buckets or (group := group_with_peers(self._reduction.process_set)) is None:
            return starts
        if self._torn_in is group:
            raise HorovodInternalError(
                "a step of this rank was interrupted while ranks combined it, so their parameters differ; broadcast "
                "parameters and optimizer state after hvd.shutdown() and hvd.init() on all ranks"
            )
        self._check.read(group)
        for bucket in self._buckets:
            moving = [(name, parameter) for name, parameter in bucket if parameter.requires_grad]
            if moving:
                parameters = [parameter.detach() for _, parameter in moving]
                starts.append((moving[0][0], parameters, [parameter.clone() for parameter in parameters]))
        return starts

    @torch.no_grad()
    def combine(self, starts: Sequence[Start]) -> None:
        """Replaces the steps taken since ``starts`` by the combined steps of all ranks.

        If some fail, their parameters are as before the step, and the others are combined before the first
        HorovodInternalError is raised.
        """
        for _, parameters, copies in starts:
            for parameter, copy in zip(parameters, copies, strict=True):
                parameter.sub_(copy)
        if not starts:
            return
        group = group_of(self._reduction.process_set)
        try:
            failures = self._reduce(group, starts)
        except BaseException:  # as from a signal handler: the other ranks go on with this rank's step
            self._torn_in = group
            for _, parameters, copies in starts:
                for parameter, copy in zip(parameters, copies, strict=True):
                    parameter.copy_(copy)
            raise
        if failures:
            self._check.start_over()
            raise failures[0]
        self._check.conclude(group)

    def _reduce(self, group: Group, starts: Sequence[Start]) -> list[HvdError]:
        with group.burst():
            flights = [self._reduction.start(group, name, parameters) for name, parameters, _ in starts]
            if self._check.ready is not None:
                self._check.submit(group)
        failures = []
        for (_, parameters, copies), flight in zip(starts, flights, strict=True):
            try:
                results: Iterable[torch.Tensor] = map(torch.add, copies, flight.finish(set()))  # one at a time
            except HvdError as error:
                failures.append(error)
                results = copies
            for parameter, result in zip(parameters, results, strict=True):
                parameter.copy_(result)
        return failures


class AdasumStep(DistributedStep):
    """The front class of an optimizer with ``op=hvd.Adasum``."""

    _reducer: DeltaReducer
    _passes: int

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes before a step, whose gradients are summed locally, as without hvdlite."""
        return self._passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes `backward_passes_per_step`. Raises ValueError unless it is positive."""
        self._passes = positive_passes(passes)

    def synchronize(self) -> None:
        """Does nothing: ranks combine steps, not gradients."""

    def skip_synchronize(self) -> NoReturn:
        """Raises AssertionError: there are no reduced gradients that could be changed before the step."""
        raise AssertionError("skip_synchronize() cannot be used with op=hvd.Adasum, which reduces in step()")

    def step(self, closure: Closure | None = None) -> Any:
        """Takes the user's step on this rank's gradients, and combines it with the steps of the other ranks."""
        starts = self._reducer.starts()
        result = super().step(closure)
        self._reducer.combine(starts)
        return result

    step.hooked = True  # type: ignore[attr-defined]  # torch runs step hooks around the user's step, so not here too
