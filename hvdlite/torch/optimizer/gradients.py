"""The gradients of a set of parameters on their way between ranks, while backward still computes others.

A hook on each parameter runs as soon as its gradient is complete for the step. The last hook of a *bucket*, one
parameter or those that the user grouped, makes it ready; `synchronize` makes the rest ready, waits for all and puts the
results in place. So every rank submits every bucket once a step, under the same name, whatever its own graph used: a
rank without a gradient contributes zeros.

What is ready is submitted in bursts of many megabytes, and the first of a step at once. Each burst wakes two threads
on every rank, and where cores are few these take their time from backward; so bursts are longer there. A hook only
moves its gradient while the cache has it, and the rest is done once a burst: backward throws the code of hooks out of
the caches, so that each line of them takes four times as long as in a loop.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch

from hvdlite.errors import HorovodInternalError, HvdError
from hvdlite.ops import group_of
from hvdlite.session import local_size, size
from hvdlite.torch.collectives.adapter import expanded
from hvdlite.torch.optimizer.ddp import refuse_ddp
from hvdlite.torch.optimizer.naming import Named, known_as
from hvdlite.torch.optimizer.parameter_check import ParameterCheck
from hvdlite.torch.optimizer.places import Place, keep_what_is_freed
from hvdlite.torch.optimizer.reduction import Reduction, Wait

# Overhead of a step with 75 gradients, 2 ranks on 2 cores, in ms of a core: 45 in bursts of 4 MiB, 34 of 16, 32 of all.
# The coordinator takes 41, 14 and 4 turns; with each gradient alone it was 122.
_BURST_BYTES: Final = 16 << 20
# Where the cores that compute must also reduce, an early reduction hides nothing. 2 ranks on 2 cores, in turns: 44 ms
# in bursts of 16 MiB, 37 of 64.
_BURST_BYTES_WITHOUT_SPARE_CORES: Final = 64 << 20


class _Flight(NamedTuple):
    """The reduction of a bucket: who is in it, with which gradients, and those that were found unchanged when it ended.

    A bucket keeps it until the step is over, so that a `synchronize` that was interrupted can be called again.
    """

    gradients: Sequence[_Gradient]
    values: Sequence[torch.Tensor]
    wait: Wait
    unchanged: set[_Gradient]


class _Gradient:
    """One parameter's gradient: ``passes_left`` backward passes of this step are still to come before it is complete.

    ``value`` and ``version`` are the tensor and its version when it was, ``sparse_dim`` is that of the last sparse
    gradient that the parameter had here, and ``place`` where it is reduced.
    """

    __slots__ = ("bucket", "hook", "name", "parameter", "passes_left", "place", "sparse_dim", "value", "version")

    def __init__(self, name: str, parameter: torch.Tensor, bucket: _Bucket, passes: int) -> None:
        self.name = name
        self.parameter = parameter
        self.bucket = bucket
        self.passes_left = passes
        self.value: torch.Tensor | None = None
        self.version = 0
        self.sparse_dim: int | None = None
        self.place: Place | None = None
        self.hook: Any = None

    def settle(self, reduction: Reduction) -> None:
        """Moves the gradient to its place, and remembers it as it is now."""
        value = self.parameter.grad
        if value is None:  # another hook has taken it
            return
        if self.place is not None:
            settled = reduction.settle(value, self.place)
            if settled is not value:
                self.parameter.grad = value = settled
        self.value = value
        self.version = value._version

    def ready_value(self, reduction: Reduction) -> torch.Tensor:
        """The parameter's gradient, or else zeros, which become its gradient."""
        if self.value is None:  # no hook has settled it
            if self.parameter.grad is None:
                self.parameter.grad = (
                    torch.zeros_like(self.parameter)
                    if self.sparse_dim is None
                    else _no_elements(self.parameter, self.sparse_dim)
                )
            self.settle(reduction)
        value = self.value
        assert value is not None
        if value.requires_grad:
            raise ValueError("it is part of a graph; backward(create_graph=True) is not supported")
        if value.layout is torch.sparse_coo:
            self.sparse_dim = value.sparse_dim()
        return value

    def has_changed(self) -> bool:
        """Whether the parameter's gradient is not what it was when it was complete."""
        value = self.parameter.grad
        return value is None or value is not self.value or value._version != self.version


class _Bucket:
    """Gradients that travel together. ``waiting`` are not complete for this step."""

    __slots__ = ("flight", "gradients", "nbytes", "waiting")

    def __init__(self, members: Iterable[Named], passes: int) -> None:
        self.gradients = [_Gradient(name, parameter, self, passes) for name, parameter in members]
        self.nbytes = sum(gradient.parameter.nbytes for gradient in self.gradients)
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
            gradient.value = None


class GradientReducer:
    """Reduces the gradients of the parameters that it was told to `watch`, from their hooks on, until `close`.

    ``passes`` backward passes are summed locally before a gradient is submitted. With ``has_places`` gradients are put
    where ranks of a host reduce them without copies, see `places`.
    """

    def __init__(self, reduction: Reduction, passes: int, has_places: bool = True) -> None:
        self._reduction = reduction
        self._has_places = has_places
        self._passes = passes
        self._buckets: list[_Bucket] = []
        self._nbytes = 0  # of all gradients that have places
        self._gradients: dict[str, _Gradient] = {}
        self._check = ParameterCheck(reduction.process_set)
        self._group: object = None  # of this step, asked once, and whether it has peers
        self._has_peers = False
        self._ready: deque[_Bucket] = deque()  # complete, and not submitted
        self._ready_bytes = 0
        self._burst_bytes = 0  # until the first bucket of this step is submitted, at once
        self._submitted: deque[_Bucket] = deque()  # of this step, in the order in which they come back
        self._has_begun = False
        self._thread = 0  # in which this step's hooks run
        self._torn: tuple[object, str] = (None, "")  # the group and the gradient whose submit was interrupted
        _reducers.add(self)

    def watch(self, members: Sequence[Named]) -> None:
        """Adds parameters that travel together, the same on all ranks. Does nothing outside the process set."""
        if not self._reduction.process_set.included():
            return
        named = known_as(self._reduction.process_set, "gradient", members)
        self._check.watch(members, named)
        bucket = _Bucket(named, self._passes)
        self._buckets.append(bucket)
        for gradient in bucket.gradients:
            self._gradients[gradient.name] = gradient
            gradient.place = Place() if self._has_places else None
            self._hook(gradient)
        if self._has_places:
            self._nbytes += bucket.nbytes
            keep_what_is_freed(self._nbytes)

    @property
    def passes(self) -> int:
        """Backward passes per step."""
        return self._passes

    @property
    def is_reducing(self) -> bool:
        """Whether a bucket is ready or in flight."""
        return bool(self._ready) or any(bucket.flight is not None for bucket in self._buckets)

    @property
    def has_begun(self) -> bool:
        """Whether a backward pass has added to a gradient since the last `synchronize`."""
        return any(gradient.passes_left < self._passes for gradient in self._gradients.values())

    def start_over(self, passes: int | None = None) -> None:
        """Forgets the passes that were counted; from now on a step has ``passes`` passes.

        Waits for what is ready or in flight, for which other ranks wait, and forgets the results.
        """
        self._flush()
        self._ready.clear()
        self._ready_bytes = 0
        for bucket in self._submitted:
            assert bucket.flight is not None
            with contextlib.suppress(HvdError):
                bucket.flight.wait()
        self._submitted.clear()
        self._group = None
        self._burst_bytes = 0
        self._passes = self._passes if passes is None else passes
        for bucket in self._buckets:
            bucket.start_over(self._passes)

    @torch.no_grad()
    def synchronize(self) -> None:
        """Puts the reduced gradient of every parameter that requires one into its ``grad``.

        A parameter without a gradient here takes part with zeros, unless there is one rank only. If some fail, all are
        waited for before the first error is raised: ValueError for a gradient that cannot be sent, AssertionError for
        one that changed meanwhile, HorovodInternalError for one that was not reduced. If a signal handler interrupts
        the wait, it goes on when it is called again. If one interrupts a submit, ranks may not agree any more about
        what was submitted, and it raises HorovodInternalError from then on.
        """
        failures: list[Exception] = []
        if self._buckets and self._reduction.is_needed:
            self._refuse_if_torn()
            others = (bucket for bucket in self._buckets if bucket.flight is None)
            self._ready = deque(dict.fromkeys([*self._ready, *others]))
            failures += self._submit_ready()
            self._flush_others()
            while self._submitted:
                failures += _failures(self._finish, (self._submitted[0],))
                self._submitted.popleft()
            self._check.conclude()
        for gradient in self._gradients.values():
            if gradient.hook is None:  # frozen when it was added
                self._hook(gradient)
        self.start_over()
        _raise_first(failures)

    def close(self) -> None:
        """Removes the hooks, and lets the places go; gradients that lie there keep their memory."""
        for gradient in self._gradients.values():
            gradient.place = None
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
        if gradient.passes_left > 0:
            return
        if self._group is None:
            self._group, self._has_peers = group_of(self._reduction.process_set), self._reduction.is_needed
            self._thread = threading.get_ident()
        if self._has_peers:
            gradient.settle(self._reduction)
            bucket = gradient.bucket
            bucket.waiting.discard(gradient)
            if bucket.is_complete:
                self._ready.append(bucket)
                self._ready_bytes += bucket.nbytes
                if self._ready_bytes >= self._burst_bytes:
                    _raise_first(self._submit_ready())

    def _submit_ready(self) -> list[Exception]:
        if not self._ready:
            return []
        if not self._burst_bytes:
            if not self._has_begun:
                refuse_ddp(
                    (gradient.name.removeprefix("gradient."), gradient.parameter)
                    for gradient in self._gradients.values()
                )
                self._has_begun = True
            self._burst_bytes = _burst_bytes()
            self._check.read()
        self._ready_bytes = 0
        with self._reduction.burst():
            self._check.submit()  # before the gradients, so that it has come when they have
            return list(_failures(self._submit, _taken(self._ready)))

    def _flush(self) -> None:
        """Submits what is ready where that can be done. What cannot be submitted is for `synchronize` to tell."""
        with contextlib.suppress(HvdError, ValueError):  # there may be no session any more
            if self._ready and group_of(self._reduction.process_set) is self._group:  # or another one
                self._submit_ready()

    def _flush_others(self) -> None:
        """To be called before waiting, because other ranks may step their optimizers in another order."""
        for other in tuple(_reducers):
            if other is not self and other._thread == threading.get_ident():
                other._flush()

    def _submit(self, bucket: _Bucket) -> None:
        gradients = [each for each in bucket.gradients if each.parameter.requires_grad or each not in bucket.waiting]
        if not gradients:
            return
        name = _name(gradients)
        try:
            values = [each.ready_value(self._reduction) for each in gradients]
            wait = self._reduction.start(name, values, [each.place for each in gradients])
            bucket.flight = _Flight(gradients, values, wait, set())
            self._submitted.append(bucket)
        except ValueError as error:
            for gradient in gradients:
                gradient.value = None  # the user may mend it, and step
            raise ValueError(f"cannot reduce {name!r}: {error}") from error
        except Exception:
            raise
        except BaseException:  # out of a signal handler: it may have been submitted or not
            self._torn = (self._group, name)
            raise

    def _refuse_if_torn(self) -> None:
        group, name = self._torn
        if name and group is group_of(self._reduction.process_set):
            raise HorovodInternalError(
                f"a signal handler interrupted this rank while it submitted {name!r}, so ranks no longer agree about "
                "this optimizer's gradients; call hvd.shutdown() and hvd.init() on all ranks, broadcast parameters and "
                "optimizer state, and go on with a new optimizer"
            )

    def _finish(self, bucket: _Bucket) -> None:
        flight = bucket.flight
        assert flight is not None
        for gradient, value, reduced in zip(flight.gradients, flight.values, flight.wait(), strict=True):
            if gradient not in flight.unchanged and gradient.has_changed():
                raise AssertionError(
                    f"{gradient.name!r} was changed while ranks were reducing it; call optimizer.synchronize() first, "
                    "then change gradients, then step() in optimizer.skip_synchronize()"
                )
            flight.unchanged.add(gradient)  # so what follows may be done again
            if value.layout is not torch.strided:
                gradient.parameter.grad = reduced
            elif reduced is value:
                pass
            elif expanded(value):  # nothing can be copied there
                gradient.parameter.grad = reduced.to(value.dtype)
            else:
                value.copy_(reduced)


_reducers: weakref.WeakSet[GradientReducer] = weakref.WeakSet()


def _burst_bytes() -> int:
    ranks_here = local_size()
    may_hide = ranks_here < len(os.sched_getaffinity(0)) or ranks_here < size()  # behind computing, or the network
    return _BURST_BYTES if may_hide else _BURST_BYTES_WITHOUT_SPARE_CORES


def _name(gradients: Sequence[_Gradient]) -> str:
    first, last = gradients[0].name, gradients[-1].name
    return first if len(gradients) == 1 else f"{first}..{last}"


def _no_elements(parameter: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    indices = torch.empty(sparse_dim, 0, dtype=torch.int64)
    values = parameter.new_empty(0, *parameter.shape[sparse_dim:])
    return torch.sparse_coo_tensor(indices, values, parameter.shape, is_coalesced=True, check_invariants=False)


def _taken(buckets: deque[_Bucket]) -> Iterator[_Bucket]:
    while buckets:
        yield buckets.popleft()


def _failures(action: Callable[[_Bucket], None], buckets: Iterable[_Bucket]) -> Iterator[Exception]:
    for bucket in buckets:
        try:
            action(bucket)
        except (HvdError, ValueError, AssertionError) as error:
            yield error


def _raise_first(failures: list[Exception]) -> None:
    """Leaves no cycle of the error and the frames that it passes, which would keep a dropped optimizer's hooks."""
    if failures:
        try:
            raise failures[0]
        finally:
            failures.clear()
