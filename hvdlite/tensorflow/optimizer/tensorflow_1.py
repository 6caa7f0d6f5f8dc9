"""Optimizers of TensorFlow 1, in graphs, in eager execution and inside `tf.function`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from hvdlite.tensorflow.operation.graphs import session_graph
from hvdlite.tensorflow.optimizer.passes import LocalGradientAggregationHelper
from hvdlite.tensorflow.optimizer.reduction import GradientReduction

Pairs = Sequence[tuple[Any, Any]]


def distributed(optimizer: Any, steps: Steps) -> Any:
    """Returns an optimizer with the state of ``optimizer``, of a subclass of its class that takes ``steps``.

    Both objects have one state, so slots and variables keep their names, and checkpoints are as without hvdlite.
    """
    if isinstance(optimizer, _Distributed):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    users = type(optimizer)
    attributes = {"_hvdlite": steps, "_optimizer": optimizer}
    kind: Any = type(f"Distributed{users.__name__}", (_Distributed, users), attributes)
    made = kind.__new__(kind)
    made.__dict__ = optimizer.__dict__
    return made


class Steps:
    """How an optimizer reduces gradients and applies them.

    With ``combines_steps`` it takes the step on its own gradients, and reduces the changes of the variables.
    """

    def __init__(
        self, reduction: GradientReduction, combines_steps: bool, passes: int, averages_passes: bool, as_dense: bool
    ) -> None:
        """Raises ValueError unless ``passes`` is positive."""
        if passes <= 0:
            raise ValueError(f"backward_passes_per_step must be positive, got {passes}")
        self.reduction = reduction
        self._combines_steps = combines_steps
        self._passes = passes
        self._how: tuple[Any, ...] = as_dense, averages_passes
        self._helpers: dict[Any, LocalGradientAggregationHelper] = {}

    def reduced(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        reduce = _unreduced if self._combines_steps else self.reduction
        if self._passes == 1:
            return reduce(gradients, variables)
        return self._helper(reduce, variables).compute_gradients(gradients, variables)

    def applied(self, step: Callable[..., Any], pairs: Pairs, global_step: Any, name: str | None) -> Any:
        """Calls ``step``, which applies gradients, in the pass that reduced them."""

        def apply() -> Any:
            take = self._combined if self._combines_steps else _taken
            return take(lambda: step(pairs, global_step=global_step, name=name), pairs)

        helpers = [self._helpers[variable.ref()] for _, variable in pairs if variable.ref() in self._helpers]
        if not helpers:
            return apply()
        return tf.group(helpers[0].apply_gradients(apply, None, pairs, global_step=global_step), name=name)

    def _helper(self, reduce: Callable[..., Any], variables: Sequence[Any]) -> LocalGradientAggregationHelper:
        """Returns the helper that adds up the gradients of ``variables``.

        In a graph for sessions it is new, because each loss has sums of its own. Elsewhere each pass calls this.
        """
        known = {id(self._helpers.get(variable.ref())) for variable in variables}
        if session_graph() is not None or len(known) > 1 or known == {id(None)}:
            helper = LocalGradientAggregationHelper(self._passes, reduce, *self._how)
            self._helpers.update((variable.ref(), helper) for variable in variables)
        return self._helpers[variables[0].ref()]

    def _combined(self, step: Callable[[], Any], pairs: Pairs) -> Any:
        variables = [variable for gradient, variable in pairs if gradient is not None]
        # An optimizer may write into the memory that a variable is read from.
        begins = [tf.raw_ops.DeepCopy(x=tf.convert_to_tensor(variable)) for variable in variables]
        with tf.control_dependencies(begins):
            taken = step()
        with tf.control_dependencies([taken]):
            changes = [variable.read_value() - begin for variable, begin in zip(variables, begins, strict=True)]
        combined = zip(variables, begins, self.reduction(changes, variables), strict=True)
        return tf.group(*[variable.assign(begin + change) for variable, begin, change in combined])


class _Distributed:
    """The front class of an optimizer."""

    _hvdlite: ClassVar[Steps]
    _optimizer: ClassVar[Any]  # the user's own; programs written for Horovod know this name

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Computes the gradients and reduces them over all ranks. Like the optimizer's own."""
        gradients, variables = zip(*super().compute_gradients(*args, **kwargs), strict=True)  # type: ignore[misc]
        return list(zip(self._hvdlite.reduced(gradients, variables), variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Applies gradients that `compute_gradients` has returned. Like the optimizer's own.

        With ``backward_passes_per_step`` it does so in the pass that reduces them, and ``global_step`` counts each.
        """
        step = super().apply_gradients  # type: ignore[misc]
        return self._hvdlite.applied(step, list(grads_and_vars), global_step, name)

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradient of ``var`` on its rank."""
        self._hvdlite.reduction.local.append(var)


def _taken(step: Callable[[], Any], pairs: Pairs) -> Any:
    return step()


def _unreduced(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    return list(gradients)
