"""Reduction of gradients while backward still computes others.

A front end calls `Overlap.count_pass` as soon as a gradient is computed. Gradients travel in *buckets*: one parameter,
or several that the user grouped. The last gradient of a bucket makes it ready. `synchronize` makes the other buckets
ready, waits for all, and puts the results in place. So every rank submits every bucket once a step, under the same
name, whatever its own graph used. A rank without a gradient contributes zeros. The negotiation shows whether any rank
had a gradient; if none had, there is none after the step either, as in a job of one rank.

Ready buckets are submitted in bursts of many megabytes, and the first of a step at once. Each burst wakes two threads
on every rank, which take time from backward where cores are few, so bursts are longer there. In the middle of backward
a gradient is only settled, while it is in the cache. The rest is done once a burst: backward evicts this code from the
caches, so it runs several times slower there than in a loop.

Several threads may compute gradients at once: PyTorch has one for each GPU, beside the caller's. The `synchronize` of
another overlap may also flush this one. Counting a gradient takes no lock, which would cost as much as the rest: each
step is one operation of a built-in container, and bytes that are not counted only make a burst longer. One lock
protects each burst. No thread waits for other ranks while it holds the lock. It is reentrant, because a signal handler
may call `synchronize` on top of a submit.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

from hvdlite.errors import DuplicateName, HorovodInternalError, HvdError
from hvdlite.ops import Group, Synced, group_of
from hvdlite.session import local_size, size
from hvdlite.training.parameter_check import ParameterCheck
from hvdlite.training.reduction import Flight, Reduction, group_with_peers

T = TypeVar("T")

# Fewer, larger bursts save turns of the coordinator; beyond this size they hide less of the reduction.
_BURST_BYTES: Final = 16 << 20
# Where the cores that compute must also reduce, an early reduction hides nothing, and larger bursts cost less.
_BURST_BYTES_WITHOUT_SPARE_CORES: Final = 64 << 20

_OTHER_OPTIMIZER: Final = (
    ". An optimizer that was made before the last hvd.init() keeps its names, which one made after it may have, too: "
    "make both in the same session, or give them different named_parameters"
)

_FAILURES: Final = (HvdError, ValueError, AssertionError)


class Gradient(ABC, Generic[T]):
    """One parameter's gradient. Front ends add what depends on the framework.

    Ranks match gradients by ``name``. After ``passes_left`` more backward passes of this step the gradient is complete,
    and ``settled`` is its value then. ``place`` is for `Reduction.pack`. ``is_blank`` is true from `value` until there
    is a result, if the parameter had no gradient.
    """

    __slots__ = ("bucket", "is_blank", "name", "passes_left", "place", "settled")

    bucket: Bucket[T]
    settled: T | None

    def __init__(self, name: str) -> None:
        self.name = name
        self.passes_left = 0
        self.place: Any = None
        self.settled = None
        self.is_blank = False

    @property
    @abstractmethod
    def is_wanted(self) -> bool:
        """True if the parameter gets gradients; false if it is frozen."""

    @property
    def is_computed_by_caller(self) -> bool:
        """True if the user's thread, which also steps, computes the gradient."""
        return True

    @abstractmethod
    def settle(self) -> None:
        """Stores the complete gradient in ``settled``."""

    @abstractmethod
    def value(self) -> T:
        """Returns the gradient to reduce. If there is none, zeros become the parameter's gradient, and it is blank.

        Raises ValueError for a gradient that cannot be reduced.
        """

    @abstractmethod
    def has_changed(self) -> bool:
        """True if the parameter's gradient has changed since it was settled."""

    @abstractmethod
    def put(self, value: T, reduced: T) -> None:
        """Replaces the parameter's gradient ``value`` by ``reduced``, another tensor. May be called twice."""

    @abstractmethod
    def drop(self) -> None:
        """Leaves the parameter without a gradient, as it was before `value`. May be called twice."""


class Bucket(Generic[T]):
    """Gradients that travel together. Those in ``waiting`` are not complete in this step.

    ``flight`` is kept from the submit to the end of the step, so that an interrupted `synchronize` can be called again.
    ``sent`` are the gradients in the flight, and ``unchanged`` those that had not changed when it ended.
    """

    __slots__ = ("flight", "gradients", "nbytes", "sent", "unchanged", "waiting")

    def __init__(self, gradients: Sequence[Gradient[T]], nbytes: int) -> None:
        self.gradients = gradients
        self.nbytes = nbytes
        self.waiting = set(gradients)
        self.sent: Sequence[Gradient[T]] = ()
        self.unchanged: set[Gradient[T]] = set()
        self.flight: Flight[T] | None = None

    @property
    def is_complete(self) -> bool:
        """True if no gradient is still to come in this step; frozen parameters get none."""
        return not any(gradient.is_wanted for gradient in tuple(self.waiting))  # a copy: other threads remove some


class Overlap(Generic[T]):
    """Reduces gradients in the buckets that `add` makes.

    ``passes`` backward passes are summed locally before a gradient is submitted. ``check`` compares the parameters
    of all ranks in each step.
    """

    def __init__(self, reduction: Reduction[T], passes: int, check: ParameterCheck[Any]) -> None:
        self._reduction = reduction
        self._process_set = reduction.process_set
        self._passes = passes
        self._check = check
        self._buckets: list[Bucket[T]] = []
        self._gradients: dict[str, Gradient[T]] = {}
        self._group: Group | None = None  # of this step, and whether it has peers
        self._has_peers = False
        self._ready: deque[Bucket[T]] = deque()  # complete, and not submitted
        self._ready_bytes = 0
        self._burst_bytes = 0  # until the first bucket of this step is submitted, at once
        self._measured: weakref.ref[Group] | None = None  # the latest group, and the size of a burst there
        self._burst_bytes_here = 0
        self._submitted: deque[Bucket[T]] = deque()  # of this step, in the order in which they finish
        self._has_begun = False
        self._thread = threading.get_ident()  # the user's, in which this step's gradients are computed
        self._torn: tuple[Group | None, str] = (None, "")  # the group and the name of an interrupted submit
        self._lock = threading.RLock()  # around each burst
        _overlaps.add(self)

    def add(self, gradients: Sequence[Gradient[T]], nbytes: int) -> None:
        """Adds gradients that travel together, the same on all ranks."""
        bucket = Bucket(gradients, nbytes)
        self._buckets.append(bucket)
        for gradient in gradients:
            gradient.bucket = bucket
            gradient.passes_left = self._passes
            self._gradients[gradient.name] = gradient

    @property
    def passes(self) -> int:
        """Backward passes per step."""
        return self._passes

    @property
    def is_reducing(self) -> bool:
        """True if a bucket is ready or in flight in the present group."""
        has_any = bool(self._ready) or any(bucket.flight is not None for bucket in self._buckets)
        return has_any and self._is_of_this_session()

    @property
    def has_begun(self) -> bool:
        """True if a backward pass has added to a gradient since the last `synchronize`."""
        return any(gradient.passes_left < self._passes for gradient in self._gradients.values())

    def prepare(self) -> None:
        """Called once, before anything is submitted. Raises ValueError to prevent that."""

    def count_pass(self, gradient: Gradient[T], *_: object) -> None:
        """Records that a backward pass has added to ``gradient``. Raises AssertionError for one pass too many."""
        if gradient.passes_left == 0:
            raise AssertionError(
                f"{gradient.name!r} was computed more than backward_passes_per_step = {self._passes} times before "
                "step(); increase backward_passes_per_step to accumulate gradients locally, or keep "
                "the backward() of another optimizer's loss from computing this gradient"
            )
        gradient.passes_left -= 1
        if gradient.passes_left > 0:
            return
        if self._group is None:
            self._begin(group_of(self._process_set), gradient.is_computed_by_caller)
        if self._has_peers:
            gradient.settle()
            bucket = gradient.bucket
            bucket.waiting.discard(gradient)
            if not bucket.waiting or bucket.is_complete:  # perhaps in two threads at once: it may be ready twice
                self._ready.append(bucket)
                self._ready_bytes += bucket.nbytes
                if self._ready_bytes >= self._burst_bytes and (failures := self._submit_ready()):
                    _raise_first(failures)

    def synchronize(self) -> None:
        """Puts the reduced gradient of every parameter that requires one in place.

        A parameter without a gradient here takes part with zeros, unless there is one rank only. It still has none if
        no rank had one. Waits for all before it raises the first error: ValueError for a gradient that cannot be sent,
        AssertionError for one that changed meanwhile, HorovodInternalError for one that was not reduced, or Mismatch if
        parameters differ and the settings make that an error. After a signal handler has interrupted the wait, it can
        be called again. After one has interrupted a submit, ranks may disagree about what was submitted, and every call
        raises HorovodInternalError.
        """
        failures: list[Exception] = []
        if self._buckets and (group := group_with_peers(self._process_set)) is not None:
            torn_in, name = self._torn
            if torn_in is group:
                raise HorovodInternalError(
                    f"a signal handler interrupted this rank while it submitted {name!r}, so ranks no longer agree "
                    "about this optimizer's gradients; call hvd.shutdown() and hvd.init() on all ranks, broadcast "
                    "parameters and optimizer state, and go on with a new optimizer"
                )
            if self._group is None:
                self._begin(group)
            self._thread = threading.get_ident()
            with self._lock:
                ready = dict.fromkeys(self._ready)  # these first, in their order
                for bucket in self._buckets:
                    if bucket.flight is None:
                        ready[bucket] = None
                self._ready = deque(ready)
                if self._ready:
                    failures += self._submit_ready()
                self._submit_check(group)  # in case a signal handler interrupted the submit of the gradients
            for other in tuple(_overlaps):  # before waiting: ranks may step their optimizers in different orders
                if other is not self and other._thread == threading.get_ident():
                    other._flush()
            synced: Synced = set()
            while self._submitted:
                try:
                    self._finish(self._submitted[0], synced)
                except _FAILURES as error:
                    failures.append(error)
                self._submitted.popleft()
            if self._check.under_way is not None:
                try:
                    self._check.conclude(group)
                except _FAILURES as error:
                    failures.append(error)
        self.start_over()
        if failures:
            _raise_first(failures)

    def start_over(self, passes: int | None = None) -> None:
        """Forgets the passes that were counted, and from now on counts ``passes`` a step.

        Submits what is ready, waits for what is in flight, because other ranks wait for it, and drops the results.
        """
        with self._lock:
            if self._ready:
                self._flush()
                self._ready.clear()
            self._ready_bytes = 0
        for bucket in self._submitted:
            assert bucket.flight is not None
            with contextlib.suppress(HvdError):
                bucket.flight.finish(set())
        self._submitted.clear()
        if self._check.under_way is not None:
            self._check.start_over()
        self._group = None
        self._burst_bytes = 0
        self._passes = self._passes if passes is None else passes
        for bucket in self._buckets:
            bucket.flight = None
            bucket.waiting.update(bucket.gradients)
            for gradient in bucket.gradients:
                gradient.passes_left = self._passes
                gradient.settled = None
                if gradient.is_blank:  # its zeros would count as a gradient in the next step
                    gradient.drop()
                    gradient.is_blank = False

    def _begin(self, group: Group, is_called_by_user: bool = True) -> None:
        self._has_peers = group.size > 1
        self._group = group  # last: while it is None, another thread may begin too, with the same result
        if is_called_by_user:
            self._thread = threading.get_ident()

    def _is_of_this_session(self) -> bool:
        try:
            return group_of(self._process_set) is self._group
        except (HvdError, ValueError):  # no session, or the process set is not registered
            return False

    def _submit_ready(self) -> list[Exception]:
        group = group_of(self._process_set)
        failures: list[Exception] = []
        with self._lock:
            if not self._burst_bytes:
                if not self._has_begun:
                    self.prepare()
                    self._has_begun = True
                if self._measured is None or self._measured() is not group:
                    self._measured, self._burst_bytes_here = weakref.ref(group), _burst_bytes()
                self._burst_bytes = self._burst_bytes_here
                self._check.read(group)
            self._ready_bytes = 0
            with group.burst():
                while self._ready:
                    try:
                        self._submit(self._ready.popleft(), group)
                    except _FAILURES as error:
                        failures.append(error)
                self._submit_check(group)
        return failures

    def _submit_check(self, group: Group) -> None:
        if self._check.ready is not None and self._submitted:  # so other ranks submit their checksums in this step too
            try:
                self._check.submit(group)
            except BaseException:  # as in `_submit`
                self._torn = (group, self._check.name)
                raise

    def _submit(self, bucket: Bucket[T], group: Group) -> None:
        if bucket.flight is not None:
            return
        waiting = bucket.waiting
        sent = bucket.gradients
        if waiting:
            sent = [each for each in sent if each not in waiting or each.is_wanted]
        if not sent:
            return
        name = sent[0].name if len(sent) == 1 else f"{sent[0].name}..{sent[-1].name}"
        try:
            values, places, blank = [], [], []
            for index, each in enumerate(sent):
                values.append(each.value())
                places.append(each.place)
                if each.is_blank:
                    blank.append(index)
            bucket.sent, bucket.unchanged = sent, set()
            bucket.flight = self._reduction.start(group, name, values, places, blank)
            self._submitted.append(bucket)
        except ValueError as error:
            for gradient in sent:
                gradient.settled = None  # the user may fix the gradient, and step
            advice = _OTHER_OPTIMIZER if isinstance(error, DuplicateName) else ""
            raise ValueError(f"cannot reduce {name!r}: {error}{advice}") from error
        except Exception:
            raise
        except BaseException:  # from a signal handler: the bucket may or may not have been submitted
            self._torn = (group, name)
            raise

    def _flush(self) -> None:
        """Submits the ready buckets where possible. `synchronize` raises the errors."""
        if self._ready and self._is_of_this_session():
            with contextlib.suppress(HvdError, ValueError):
                self._submit_ready()

    def _finish(self, bucket: Bucket[T], synced: Synced) -> None:
        flight = bucket.flight
        assert flight is not None
        for gradient, value, reduced in zip(bucket.sent, flight.tensors, flight.finish(synced), strict=True):
            if gradient not in bucket.unchanged and gradient.has_changed():
                raise AssertionError(
                    f"{gradient.name!r} was changed while ranks were reducing it; call optimizer.synchronize() first, "
                    "then change gradients, then step() in optimizer.skip_synchronize()"
                )
            bucket.unchanged.add(gradient)  # so the rest can be repeated after an interrupt
            if reduced is not value:
                gradient.put(value, reduced)
            gradient.is_blank = False
        for index in flight.blank:
            bucket.sent[index].drop()


_overlaps: weakref.WeakSet[Overlap[Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for overlap in tuple(_overlaps):
        overlap._lock = threading.RLock()  # a thread that the child lacks may hold the old one


os.register_at_fork(after_in_child=_after_fork_in_child)


def _burst_bytes() -> int:
    ranks_here = local_size()
    may_hide = ranks_here < len(os.sched_getaffinity(0)) or ranks_here < size()  # a spare core, or the network
    return _BURST_BYTES if may_hide else _BURST_BYTES_WITHOUT_SPARE_CORES


def _raise_first(failures: list[Exception]) -> None:
    """Raises the first error, without a cycle of error and frames, which would keep a dropped optimizer alive."""
    try:
        raise failures[0]
    finally:
        failures.clear()
