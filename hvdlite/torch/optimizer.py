"""`DistributedOptimizer`: any torch optimizer, stepping on gradients that are averaged over all ranks.

The wrapped optimizer is of a subclass of the user's class and shares all attributes of the user's object: they have one
``__dict__``, so parameter groups, state and hooks stay the same for both, also when a checkpoint is loaded into either.
A `GradientReducer` does the work; `step` waits for it before the user's ``step`` runs.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hvdlite.core.dtypes import OP_NAMES, Adasum, Average
from hvdlite.ops import Compressor
from hvdlite.session import size
from hvdlite.torch.compression import Compression
from hvdlite.torch.gradients import GradientReducer
from hvdlite.torch.naming import ParamGroup, group_names, names_of

Closure = Callable[[], Any]


class _DistributedOptimizer(torch.optim.Optimizer):
    """What stands before the user's class in the order of inheritance."""

    _reducer: GradientReducer
    _is_synchronized: bool
    _skips_synchronize: bool

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes whose gradients are summed on their rank before they are reduced."""
        return self._reducer.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes `backward_passes_per_step` between two steps. Raises ValueError unless it is positive."""
        self._refuse_while_reducing("set_backward_passes_per_step()")
        self._reducer.start_over(_positive(passes))

    def synchronize(self) -> None:
        """Waits until every gradient is reduced; then gradients may be clipped, unscaled or looked at.

        A parameter without a gradient on this rank takes part with zeros and gets what the others computed, so ranks
        may use different parameters, but all of them must require gradients for the same ones. Raises AssertionError if
        a gradient was changed since backward, and HorovodInternalError if the ranks could not reduce one.
        """
        self._reducer.synchronize()
        self._is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which `step` does not synchronize, because `synchronize` was called before."""
        self._skips_synchronize = True
        try:
            yield
        finally:
            self._skips_synchronize = False

    def step(self, closure: Closure | None = None) -> Any:
        """The user's step on the reduced gradients; with a closure, on those of each time that it is called."""
        if self._skips_synchronize:
            self._refuse_while_reducing("step() in skip_synchronize()")
            self._is_synchronized = False
            return super().step(closure)
        if closure is not None:
            return super().step(lambda: self._evaluate(closure))
        if self._is_synchronized:
            warnings.warn(
                "step() after synchronize() reduces all gradients a second time; call it in skip_synchronize()",
                stacklevel=2,
            )
        self.synchronize()
        self._is_synchronized = False
        return super().step()

    step.hooked = True  # type: ignore[attr-defined]  # torch runs step hooks around the user's step, so not here too

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients. Raises AssertionError between backward and step, where ranks are reducing them."""
        self._refuse_while_reducing("zero_grad()")
        self._reducer.start_over()
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Adds parameters, which are reduced from now on; all ranks add the same."""
        super().add_param_group(param_group)
        for parameter, name in group_names(self.param_groups[-1], len(self.param_groups) - 1).items():
            self._reducer.watch(f"gradient.{name}", parameter)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of a wrapped or bare optimizer, and forgets reductions of the steps before."""
        self._reducer.start_over()
        self._is_synchronized = False
        super().load_state_dict(state_dict)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a DistributedOptimizer cannot be copied or pickled: it has hooks on the parameters. Save and load its "
            "state_dict(), or wrap a copy of the optimizer that it was made from"
        )

    def _evaluate(self, closure: Closure) -> Any:
        loss = closure()
        self._reducer.synchronize()
        return loss

    def _refuse_while_reducing(self, action: str) -> None:
        if self._reducer.is_reducing:
            raise AssertionError(
                f"{action} was called while ranks are reducing the gradients of the last backward(); "
                "call step() or synchronize() first"
            )


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Any]] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
) -> _DistributedOptimizer:
    """An optimizer of the same class and state whose ``step`` first reduces the gradients over all ranks.

    Gradients are reduced while backward computes others. ``named_parameters`` gives them names that mean something in
    messages. With ``backward_passes_per_step`` the gradients of so many passes are summed before they are reduced.
    ``gradient_predivide_factor`` f divides gradients by f before they are summed and by size / f after it.

    The object that was wrapped shares everything with the new one and must not step any more. Learning-rate schedulers
    take either. Raises ValueError for arguments that cannot be, and before ``init``.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"expected a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, _DistributedOptimizer):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    if op == Adasum or op not in OP_NAMES:
        raise ValueError(f"op {OP_NAMES.get(op, op)} is not supported; use hvd.Average or hvd.Sum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor needs op=hvd.Average; it splits the division of an average")
    if not gradient_predivide_factor > 0:
        raise ValueError(f"gradient_predivide_factor must be positive, got {gradient_predivide_factor}")
    size()  # raises before init
    names = names_of(optimizer.param_groups, named_parameters)
    factor = float(gradient_predivide_factor)
    reducer = GradientReducer(compression, _positive(backward_passes_per_step), op, 1 / factor, factor)
    try:
        for parameter, name in names.items():
            reducer.watch(f"gradient.{name}", parameter)
    except BaseException:
        reducer.close()
        raise
    return _wrap(optimizer, reducer)


def _wrap(optimizer: torch.optim.Optimizer, reducer: GradientReducer) -> _DistributedOptimizer:
    user_class = type(optimizer)
    subclass = type(user_class.__name__, (_DistributedOptimizer, user_class), {"__doc__": user_class.__doc__})
    wrapped: _DistributedOptimizer = object.__new__(subclass)
    attributes = vars(optimizer)
    attributes.pop("step", None)  # a scheduler's counter around the user's step, which would hide ours
    attributes.update(_reducer=reducer, _is_synchronized=False, _skips_synchronize=False)
    wrapped.__dict__ = attributes
    weakref.finalize(wrapped, reducer.close).atexit = False  # another optimizer may take the parameters over
    return wrapped


def _positive(passes: int) -> int:
    if passes <= 0:
        raise ValueError(f"backward_passes_per_step must be positive, got {passes}")
    return passes
