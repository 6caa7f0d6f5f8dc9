"""`DistributedOptimizer`: any torch optimizer, stepping on gradients that are averaged over all ranks.

A `GradientReducer` does the work during backward; `step` waits for it before the user's ``step`` runs.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hvdlite.ops import OP_NAMES, Adasum, Average, Compressor, ProcessSet, Sum, global_process_set
from hvdlite.torch.collectives.adapter import refuse_wrapped
from hvdlite.torch.compression import Compression
from hvdlite.torch.optimizer.adasum import AdasumStep, DeltaReducer
from hvdlite.torch.optimizer.conflicts import refuse_ddp, watch_scalers
from hvdlite.torch.optimizer.gradients import GradientReducer
from hvdlite.torch.optimizer.names import horovod_names, names_by_place
from hvdlite.torch.optimizer.reduction import TensorReduction
from hvdlite.torch.optimizer.wrapping import Closure, DistributedStep, positive_passes, wrap
from hvdlite.training.buckets import Groups, in_buckets, merged
from hvdlite.training.naming import names_of
from hvdlite.training.reduction import check_choices


class _GradientStep(DistributedStep):
    """The front class of an optimizer that reduces gradients."""

    _reducer: GradientReducer
    _is_synchronized: bool
    _skips_synchronize: bool

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes whose gradients are summed locally before they are reduced."""
        return self._reducer.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes `backward_passes_per_step` between two steps. Raises ValueError unless it is positive."""
        self._refuse_while_reducing("set_backward_passes_per_step()")
        self._reducer.start_over(positive_passes(passes))

    def synchronize(self) -> None:
        """Waits until every gradient is reduced; then gradients may be clipped, unscaled or read.

        A parameter without a gradient on this rank takes part with zeros and gets the other ranks' gradient. So ranks
        may use different parameters, but must require gradients for the same ones. Raises AssertionError if a gradient
        was changed since backward, and HorovodInternalError if the ranks could not reduce one.
        """
        self._reducer.synchronize()
        self._is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which `step` does not synchronize, because `synchronize` was called before."""
        skipped_before, self._skips_synchronize = self._skips_synchronize, True
        try:
            yield
        finally:
            self._skips_synchronize = skipped_before

    def step(self, closure: Closure | None = None) -> Any:
        """Takes the user's step on the reduced gradients. With a closure, each of its calls computes such gradients.

        In `skip_synchronize` the gradients are used as they are, after `synchronize`, which a closure calls itself.
        Raises AssertionError if it was not called.
        """
        if closure is not None:
            result = super().step(lambda: self._evaluate(closure))
            self._is_synchronized = False
            return result
        if self._skips_synchronize:
            self._refuse_unsynchronized("call that first")
            self._is_synchronized = False
            return super().step()
        if self._is_synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(): "
                "all gradients are reduced a second time. Call it as in: with optimizer.skip_synchronize(): "
                "optimizer.step()",
                stacklevel=2,
            )
        self.synchronize()
        self._is_synchronized = False
        return super().step()

    step.hooked = True  # type: ignore[attr-defined]  # torch runs step hooks around the user's step, so not here too

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients. Raises AssertionError between backward and step, where ranks are reducing them."""
        self._refuse_while_reducing(
            "zero_grad()",
            ". If that was the backward() of another model's loss, as in a GAN, step() would train on the wrong loss: "
            "restrict it with loss.backward(inputs=list(generator.parameters())), or freeze the parameters of this "
            "optimizer meanwhile with discriminator.requires_grad_(False)",
        )
        self._reducer.start_over()
        self._is_synchronized = False
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of a wrapped or bare optimizer, and drops reductions of earlier steps."""
        self._reducer.start_over()
        self._is_synchronized = False
        super().load_state_dict(state_dict)

    def _allreduce_grad_async(self, p: torch.Tensor) -> tuple[Any, Any]:
        """Starts to reduce the gradient of ``p`` by itself, and returns a handle and a context, as in Horovod.

        ``compression.decompress(hvd.synchronize(handle), context)`` is the reduced gradient, which without compression
        is ``p.grad`` too. The handle of a sparse gradient is a function that returns it. `step` and `synchronize` do
        not wait for it, and reduce the gradients as they are. All ranks make the same calls. Raises AssertionError
        between backward and step, where ranks are reducing the gradients already.
        """
        if p not in self._parameter_names:
            raise ValueError(f"a tensor of shape {tuple(p.shape)} is no parameter of this DistributedOptimizer")
        self._refuse_while_reducing("_allreduce_grad_async()")
        return self._reducer.start_alone(f"_allreduce_grad_async.{self._parameter_names[p]}", p)

    def _evaluate(self, closure: Closure) -> Any:
        loss = closure()
        if self._skips_synchronize:
            self._refuse_unsynchronized("the closure calls it after backward()")
        else:
            self._reducer.synchronize()
        return loss

    def _refuse_unsynchronized(self, advice: str) -> None:
        if not self._is_synchronized or self._reducer.has_begun:
            raise AssertionError(
                f"step() in skip_synchronize() takes the gradients that synchronize() has reduced; {advice}"
            )

    def _refuse_while_reducing(self, action: str, more: str = "") -> None:
        if self._reducer.is_reducing:
            raise AssertionError(
                f"{action} was called while ranks are reducing the gradients of the last backward(); "
                f"call step() or synchronize() first{more}"
            )


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Any]] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups[torch.Tensor] = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    gradients_in_shared_memory: bool = True,
) -> DistributedStep:
    """An optimizer of the same class and state whose ``step`` first reduces the gradients over all ranks.

    Gradients are reduced while backward computes others. ``named_parameters`` gives the names for messages. With
    ``backward_passes_per_step`` the gradients of that many passes are summed before they are reduced.
    ``gradient_predivide_factor`` f divides gradients by f before they are summed and by size / f after it.
    ``groups``, a number of groups or lists of parameters, reduces parameters together, as soon as all of a group have
    their gradients (``num_groups`` is its deprecated form). The results of sparse gradients are sparse; they travel
    densely if they are in a group of several or ``sparse_as_dense`` is set. A rank outside ``process_set`` takes its
    steps alone. ``op=hvd.Adasum`` combines the ranks' own steps instead (docs/pytorch.md). With
    ``gradients_in_shared_memory`` the ``grad`` of a parameter is the same tensor after every backward, which ranks of a
    host reduce without copies.

    ``optimizer`` shares all its attributes with the new one and must not step any more. Learning-rate schedulers take
    either. Raises ValueError for invalid arguments, and before ``init``.
    """
    _check(optimizer, op, gradient_predivide_factor, process_set)
    if isinstance(named_parameters, torch.nn.Module):
        raise ValueError("named_parameters is a model; pass its parameters with their names: model.named_parameters()")
    given = None if named_parameters is None else list(named_parameters)
    names = names_of(names_by_place(optimizer.param_groups), given)
    for parameter, name in names.items():
        refuse_wrapped(parameter, name)
    refuse_ddp((name, parameter) for parameter, name in names.items())
    buckets = in_buckets(names, merged(groups, num_groups), torch.Tensor)
    passes = positive_passes(backward_passes_per_step)
    factor = float(gradient_predivide_factor)
    reduction = TensorReduction(compression, op, factor, sparse_as_dense, process_set)
    all_names = {**names, **{parameter: name for name, parameter in given or ()}}
    shared = dict(_parameter_names=horovod_names(all_names))
    choices = dict(op=op, gradient_predivide_factor=factor, sparse_as_dense=sparse_as_dense, process_set=process_set)
    if op == Adasum:
        deltas = DeltaReducer(reduction)
        for bucket in buckets:
            deltas.watch(bucket)
        return wrap(optimizer, AdasumStep, choices, _reducer=deltas, _passes=passes, **shared)
    reducer = GradientReducer(reduction, passes, gradients_in_shared_memory)
    for bucket in buckets:
        reducer.watch(bucket)
    state = dict(_reducer=reducer, _is_synchronized=False, _skips_synchronize=False)
    wrapped = wrap(optimizer, _GradientStep, choices, **state, **shared)
    weakref.finalize(wrapped, reducer.close).atexit = False  # another optimizer may take the parameters over
    return wrapped


def _check(optimizer: Any, op: int, predivide_factor: float, process_set: ProcessSet) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"expected a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, DistributedStep):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    if (wrapper := vars(optimizer).get("_wrapper")) is not None and wrapper() is not None:
        raise ValueError("this optimizer is wrapped in a DistributedOptimizer already; use that one")
    if op not in (Average, Sum, Adasum):
        raise ValueError(f"op {OP_NAMES.get(op, op)} is not supported; use hvd.Average, hvd.Sum or hvd.Adasum")
    check_choices(op, predivide_factor, process_set)


watch_scalers(lambda optimizer: isinstance(optimizer, _GradientStep) and optimizer._reducer.is_reducing)
