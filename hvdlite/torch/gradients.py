"""The gradients of a set of parameters on their way between ranks, while backward still computes others.

A hook on each parameter runs as soon as its gradient is complete for the step. The last hook of a *bucket*, one
parameter or those that the user grouped, submits it; `synchronize` submits the buckets that are not complete, waits for
all and puts the results in place. So every rank submits every bucket once a step, under the same name, whatever its own
graph used: a rank without a gradient contributes zeros.

Hooks run with the GIL in the middle of backward and are the only cost that it sees: counting, one submit, nothing else.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from hvdlite.errors import HvdError
from hvdlite.torch.naming import Named, known_as
from hvdlite.torch.reduction import Reduction, Wait


class _Flight(NamedTuple):
    """A reduction that was started: who is in it, with which gradients, and their versions at the start."""

    wait: Wait
    gradients: list[_Gradient]
    values: list[torch.Tensor]
    versions: list[int]


class _Gradient:
    """One parameter's gradient: ``passes_left`` backward passes of this step are still to come before it is complete.

    ``sparse_dim`` is that of the last sparse gradient that the parameter had here.
    """

    __slots__ = ("bucket", "hook", "name", "parameter", "passes_left", "sparse_dim")

    def __init__(self, name: str, parameter: torch.Tensor, bucket: _Bucket, passes: int) -> None:
        self.name = name
        self.parameter = parameter
        self.bucket = bucket
        self.passes_left = passes
        self.sparse_dim: int | None = None
        self.hook: Any = None

    def ready_value(self) -> torch.Tensor:
        """The parameter's gradient, or else zeros, which become its gradient."""
        value = self.parameter.grad
        if value is None:
            value = self.parameter.grad = (
                torch.zeros_like(self.parameter)
                if self.sparse_dim is None
                else _no_elements(self.parameter, self.sparse_dim)
            )
        if value.requires_grad:
            raise ValueError("it is part of a graph; backward(create_graph=True) is not supported")
        if value.layout is torch.sparse_coo:
            self.sparse_dim = value.sparse_dim()
        return value


class _Bucket:
    """Gradients that travel together. ``waiting`` are not complete for this step."""

    __slots__ = ("flight", "gradients", "waiting")

    def __init__(self, members: Iterable[Named], passes: int) -> None:
        self.gradients = [_Gradient(name, parameter, self, passes) for name, parameter in members]
        self.waiting = set(self.gradients)
        self.flight: _Flight | None = None

    @property
    def is_complete(self) -> bool:
        """Whether nothing more is to come in this step; frozen parameters get no gradient."""
        return not any(gradient.parameter.requires_grad for gradient in self.waiting)

    def start_over(self, passes: int) -> None:
        self.flight = None
        self.waiting.update(self.gradients)
        for gradient in self.gradients:
            gradient.passes_left = passes


class GradientReducer:
    """Reduces the gradients of the parameters that it was told to `watch`, from their hooks on, until `close`.

    ``passes`` backward passes are summed locally before a gradient is submitted.
    """

    def __init__(self, reduction: Reduction, passes: int) -> None:
        self._reduction = reduction
        self._passes = passes
        self._buckets: list[_Bucket] = []
        self._gradients: dict[str, _Gradient] = {}

    def watch(self, members: Sequence[Named]) -> None:
        """Adds parameters that travel together, the same on all ranks. Does nothing outside the process set."""
        if not self._reduction.process_set.included():
            return
        bucket = _Bucket(known_as(self._reduction.process_set, "gradient", members), self._passes)
        self._buckets.append(bucket)
        for gradient in bucket.gradients:
            self._gradients[gradient.name] = gradient
            self._hook(gradient)

    @property
    def passes(self) -> int:
        """Backward passes per step."""
        return self._passes

    @property
    def is_reducing(self) -> bool:
        """Whether a gradient is in flight."""
        return any(bucket.flight is not None for bucket in self._buckets)

    def start_over(self, passes: int | None = None) -> None:
        """Forgets the passes that were counted; from now on a step has ``passes`` passes.

        Waits for what is in flight, whose names could not be used again before, and forgets the results.
        """
        for bucket in self._buckets:
            if bucket.flight is not None:
                with contextlib.suppress(HvdError):
                    bucket.flight.wait()
        self._passes = self._passes if passes is None else passes
        for bucket in self._buckets:
            bucket.start_over(self._passes)

    @torch.no_grad()
    def synchronize(self) -> None:
        """Puts the reduced gradient of every parameter that requires one into its ``grad``.

        A parameter without a gradient here takes part with zeros, unless there is one rank only. If some fail, all are
        waited for before the first error is raised: ValueError for a gradient that cannot be sent, AssertionError for
        one that changed meanwhile, HorovodInternalError for one that was not reduced.
        """
        failures: list[Exception] = []
        if self._buckets and self._reduction.is_needed:
            failures += _failures(self._start, (each for each in self._buckets if each.flight is None))
            failures += _failures(self._finish, (each for each in self._buckets if each.flight is not None))
        for gradient in self._gradients.values():
            if gradient.hook is None:  # frozen when it was added
                self._hook(gradient)
        self.start_over()
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Removes the hooks."""
        for gradient in self._gradients.values():
            if gradient.hook is not None:
                gradient.hook.remove()

    def _hook(self, gradient: _Gradient) -> None:
        if gradient.parameter.requires_grad:
            hook = functools.partial(self._count_pass, gradient)
            gradient.hook = gradient.parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                hook
            )

    def _count_pass(self, gradient: _Gradient, parameter: torch.Tensor) -> None:
        if gradient.passes_left == 0:
            raise AssertionError(
                f"{gradient.name!r} was computed more than backward_passes_per_step = {self._passes} times before "
                "step(); increase backward_passes_per_step to accumulate gradients locally"
            )
        gradient.passes_left -= 1
        if gradient.passes_left == 0 and self._reduction.is_needed:
            gradient.bucket.waiting.discard(gradient)
            if gradient.bucket.is_complete:
                self._start(gradient.bucket)

    def _start(self, bucket: _Bucket) -> None:
        gradients = [each for each in bucket.gradients if each.parameter.requires_grad or each not in bucket.waiting]
        if not gradients:
            return
        name = gradients[0].name if len(gradients) == 1 else f"{gradients[0].name}..{gradients[-1].name}"
        try:
            values = [gradient.ready_value() for gradient in gradients]
            wait = self._reduction.start(name, values)
        except ValueError as error:
            raise ValueError(f"cannot reduce {name!r}: {error}") from error
        bucket.flight = _Flight(wait, gradients, values, [value._version for value in values])

    def _finish(self, bucket: _Bucket) -> None:
        assert bucket.flight is not None
        wait, gradients, values, versions = bucket.flight
        bucket.flight = None
        for gradient, value, version, reduced in zip(gradients, values, versions, wait(), strict=True):
            if gradient.parameter.grad is not value or value._version != version:
                raise AssertionError(
                    f"{gradient.name!r} was changed while ranks were reducing it; call optimizer.synchronize() first, "
                    "then change gradients, then step() in optimizer.skip_synchronize()"
                )
            if value.layout is not torch.strided:
                gradient.parameter.grad = reduced
            elif reduced is not value:
                value.copy_(reduced)


def _no_elements(parameter: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    indices = torch.empty(sparse_dim, 0, dtype=torch.int64)
    values = parameter.new_empty(0, *parameter.shape[sparse_dim:])
    return torch.sparse_coo_tensor(indices, values, parameter.shape, is_coalesced=True, check_invariants=False)


def _failures(action: Callable[[_Bucket], None], buckets: Iterable[_Bucket]) -> Iterator[Exception]:
    for bucket in buckets:
        try:
            action(bucket)
        except (HvdError, ValueError, AssertionError) as error:
            yield error
