"""The gradients of a set of parameters on their way between ranks, while backward still computes others.

A hook on each parameter runs as soon as its gradient is complete for the step, and submits it; `synchronize` submits
those whose hook did not run, waits for all and puts the results in place. So every rank submits every parameter once a
step, under the same name, whatever its own graph used: a rank without a gradient contributes zeros.

A gradient is reduced in its own memory if that is contiguous and not compressed. Otherwise a copy travels and is copied
back at the end, because ranks may lay the same parameter out differently.

Hooks run with the GIL in the middle of backward and are the only cost that it sees: counting, one submit, nothing else.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from hvdlite.core.handle import Handle
from hvdlite.errors import HvdError
from hvdlite.ops import Compressor, synchronize
from hvdlite.session import size
from hvdlite.torch.tensors import collectives, dense


class _Flight(NamedTuple):
    """A reduction that was started: its handle, the gradient it is for, and that one's version at the start."""

    handle: Handle
    value: torch.Tensor
    version: int
    context: Any


class _Gradient:
    """One parameter's gradient: ``passes_left`` backward passes of this step are still to come before its flight."""

    __slots__ = ("flight", "hook", "name", "parameter", "passes_left")

    def __init__(self, name: str, parameter: torch.Tensor, passes: int) -> None:
        self.name = name
        self.parameter = parameter
        self.passes_left = passes
        self.flight: _Flight | None = None
        self.hook: Any = None


class GradientReducer:
    """Reduces the gradients of the parameters that it was told to `watch`, from their hooks on, until `close`.

    ``passes`` backward passes are summed locally before a gradient is submitted.
    """

    def __init__(self, compression: Compressor, passes: int, op: int, prescale: float, postscale: float) -> None:
        self._compression = compression
        self._passes = passes
        self._submit = functools.partial(
            collectives.allreduce_async_, op=op, prescale_factor=prescale, postscale_factor=postscale
        )
        self._gradients: dict[str, _Gradient] = {}

    def watch(self, name: str, parameter: torch.Tensor) -> None:
        """Adds a parameter. Its name is the same on all ranks. Raises ValueError if another one has the name."""
        if name in self._gradients:
            raise ValueError(f"{name!r} is the name of another parameter of this optimizer; names must be unique")
        gradient = _Gradient(name, parameter, self._passes)
        self._gradients[name] = gradient
        self._hook(gradient)

    @property
    def passes(self) -> int:
        """Backward passes per step."""
        return self._passes

    @property
    def is_reducing(self) -> bool:
        """Whether a gradient is in flight."""
        return any(gradient.flight is not None for gradient in self._gradients.values())

    def start_over(self, passes: int | None = None) -> None:
        """Forgets the passes that were counted; from now on a step has ``passes`` passes.

        Waits for what is in flight, whose names could not be used again before, and forgets the results.
        """
        for gradient in self._gradients.values():
            if gradient.flight is not None:
                with contextlib.suppress(HvdError):
                    synchronize(gradient.flight.handle)
        self._passes = self._passes if passes is None else passes
        for gradient in self._gradients.values():
            gradient.passes_left = self._passes
            gradient.flight = None

    @torch.no_grad()
    def synchronize(self) -> None:
        """Puts the reduced gradient of every parameter that requires one into its ``grad``.

        A parameter without a gradient here takes part with zeros, unless there is one rank only. If some fail, all are
        waited for before the first error is raised: ValueError for a gradient that cannot be sent, AssertionError for
        one that changed meanwhile, HorovodInternalError for one that was not reduced.
        """
        gradients = [each for each in self._gradients.values() if each.parameter.requires_grad or each.flight]
        failures: list[Exception] = []
        if size() > 1:
            failures += _failures(self._start, (each for each in gradients if each.flight is None))
            failures += _failures(self._finish, (each for each in gradients if each.flight is not None))
        for gradient in gradients:
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
        if gradient.passes_left == 0 and size() > 1:
            self._start(gradient)

    def _start(self, gradient: _Gradient) -> None:
        value = gradient.parameter.grad
        if value is None:
            value = gradient.parameter.grad = torch.zeros_like(gradient.parameter)
        try:
            if value.requires_grad:
                raise ValueError("it is part of a graph; backward(create_graph=True) is not supported")
            sent, context = self._compression.compress(value)
            handle = self._submit(dense(sent), name=gradient.name)
        except ValueError as error:
            raise ValueError(f"cannot reduce {gradient.name!r}: {error}") from error
        gradient.flight = _Flight(handle, value, value._version, context)

    def _finish(self, gradient: _Gradient) -> None:
        assert gradient.flight is not None
        handle, value, version, context = gradient.flight
        reduced = synchronize(handle)
        if gradient.parameter.grad is not value or value._version != version:
            raise AssertionError(
                f"{gradient.name!r} was changed while ranks were reducing it; call optimizer.synchronize() first, "
                "then change gradients, then step() in optimizer.skip_synchronize()"
            )
        if reduced is not value:
            value.copy_(self._compression.decompress(reduced, context))


def _failures(action: Callable[[_Gradient], None], gradients: Iterable[_Gradient]) -> Iterator[Exception]:
    for gradient in gradients:
        try:
            action(gradient)
        except (HvdError, ValueError, AssertionError) as error:
            yield error
